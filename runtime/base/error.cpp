#include "pollen/base/error.hpp"

#include <fmt/format.h>

namespace pollen {

namespace {

std::string sentence(int errnum, const ErrorText& text) {
  std::string out = fmt::format("cannot {}", text.attempted);
  if (!text.on.empty()) out += fmt::format(" on {}", text.on);
  out += fmt::format(": {}", text.why.empty() ? std::generic_category().message(errnum) : text.why);
  if (!text.remedy.empty()) out += fmt::format(". {}", text.remedy);
  return out;
}

}  // namespace

Error::Error(int errnum, ErrorText text)
    : std::system_error(errnum, std::generic_category()),
      text_(std::move(text)),
      message_(sentence(errnum, text_)) {}

}  // namespace pollen
