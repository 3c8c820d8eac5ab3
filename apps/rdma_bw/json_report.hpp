// The report as one JSON document; docs/rdma_bw.md has its schema.
//
// Thread rules: one thread. Errors: pollen::Error when the file can't be written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "pollen/net/fd.hpp"
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

// Where the document goes: opened before the run, so that what can't be written is known then; a file is
// replaced in one go at the end.
class JsonFile {
 public:
  explicit JsonFile(std::string path);  // "-": standard output
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  void write(const std::string& text);

 private:
  [[noreturn]] void fail(int errnum) const;

  std::string path_;
  std::string temporary_;  // empty: written to directly
  net::Fd fd_;
};

}  // namespace pollen::bw
