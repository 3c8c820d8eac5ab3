// The report as one JSON document; docs/rdma_bw.md has its schema.
//
// Thread rules: one thread. Errors: pollen::Error when the file can't be written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report.hpp"

namespace pollen::bw {

class JsonReport {
 public:
  explicit JsonReport(const SideSetup& setup, const RunInfo& info, const Options& options);

  void round(const SideSetup& setup, const Round& round, const RoundFigures& figures);
  void verdict(std::uint64_t size, const Expectation& expectation, const Verdict& verdict);
  void interrupted() { document_["test_info"]["interrupted"] = true; }

  std::string text() const;

 private:
  nlohmann::json document_;
  nlohmann::json results_ = nlohmann::json::array();
  nlohmann::json windows_ = nlohmann::json::array();
  bool gbits_;
};

// Where the document goes. What can't be written is refused before the run; a file is replaced in one go.
class JsonFile {
 public:
  explicit JsonFile(std::string path);  // "-": standard output

  void write(const std::string& text) const;

 private:
  [[noreturn]] void fail(int errnum) const;

  std::string path_;
  bool special_ = false;  // a pipe or a device: written to as it is
};

}  // namespace pollen::bw
