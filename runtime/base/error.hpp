// What the control path throws: a sentence that says what was attempted, on which device or
// file, why it failed and what to do about it. The data path never throws; it returns counts
// or statuses.
//
// Thread rules: a value type, safe to copy between threads.
#pragma once

#include <string>
#include <system_error>

namespace pollen {

struct ErrorText {
  std::string attempted;    // "create a completion queue of 4096 entries"; completes "cannot …"
  std::string on = {};      // device, file, lcore or peer; may be empty
  std::string why = {};     // the cause; empty: the text of the error code
  std::string remedy = {};  // an instruction: "raise RLIMIT_MEMLOCK to 64 MiB: ulimit -l 65536"
};

class Error : public std::system_error {
 public:
  // errnum: an errno value; use EINVAL for input that makes no sense.
  Error(int errnum, ErrorText text);

  const char* what() const noexcept override { return message_.c_str(); }
  const ErrorText& text() const noexcept { return text_; }

 private:
  ErrorText text_;
  std::string message_;
};

}  // namespace pollen
