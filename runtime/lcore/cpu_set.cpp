#include "pollen/lcore/cpu_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<unsigned> hex_value(char c) {
  if (is_digit(c)) return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A') + 10;
  return std::nullopt;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Quoted for a sentence, and not longer than one.
std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 60;
  if (text.size() <= longest) return fmt::format("'{}'", text);
  return fmt::format("'{}…' ({} characters)", text.substr(0, longest), text.size());
}

std::string beyond(std::string_view what, std::string_view number) {
  constexpr std::size_t longest = 20;
  const bool cut = number.size() > longest;
  return fmt::format("{} {}{} is beyond {}, the largest CPU number there can be", what,
                     number.substr(0, longest), cut ? "…" : "", CpuSet::limit - 1);
}

// Reads lists; every refusal passes through fail(), which knows the text and the position.
class ListReader {
 public:
  ListReader(std::string_view text, bool refuse_duplicates)
      : text_(trim(text)), refuse_duplicates_(refuse_duplicates) {}

  CpuSet read() {
    CpuSet set;
    do {
      read_item(set);
    } while (accept(','));
    if (at_ < text_.size())
      fail(fmt::format("'{}' at position {} does not belong there", text_[at_], at_ + 1));
    return set;
  }

 private:
  [[noreturn]] void fail(std::string why) const {
    throw Error(EINVAL, {.attempted = fmt::format("read the core list {}", quoted(text_)),
                         .why = std::move(why),
                         .remedy = "Write numbers and ranges with commas between them, like 0-3,8"});
  }

  bool accept(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  unsigned read_number() {
    const auto start = at_;
    unsigned value = 0;
    while (at_ < text_.size() && is_digit(text_[at_])) {
      value = std::min(CpuSet::limit, value * 10 + static_cast<unsigned>(text_[at_] - '0'));
      ++at_;
    }
    if (at_ == start) {
      fail(at_ == text_.size() ? fmt::format("a CPU number is missing at position {}, the end", at_ + 1)
                               : fmt::format("'{}' at position {} is not a CPU number", text_[at_], at_ + 1));
    }
    if (value >= CpuSet::limit) fail(beyond("CPU", text_.substr(start, at_ - start)));
    return value;
  }

  void read_item(CpuSet& set) {
    const auto start = at_;
    const unsigned first = read_number();
    const unsigned last = accept('-') ? read_number() : first;
    const auto item = text_.substr(start, at_ - start);
    if (last < first) fail(fmt::format("the range {} at position {} runs backwards", item, start + 1));
    for (unsigned cpu = first; cpu <= last; ++cpu) {
      if (refuse_duplicates_ && set.contains(cpu)) {
        fail(fmt::format("{} at position {} names CPU {} a second time", item, start + 1, cpu));
      }
      set.add(cpu);
    }
  }

  std::string_view text_;
  bool refuse_duplicates_;
  std::size_t at_ = 0;
};

}  // namespace

CpuSet::CpuSet(std::initializer_list<unsigned> cpus) {
  for (const unsigned cpu : cpus) add(cpu);
}

CpuSet CpuSet::parse_list(std::string_view text) { return ListReader(text, true).read(); }

CpuSet CpuSet::parse_kernel_list(std::string_view text) {
  if (trim(text).empty()) return {};
  return ListReader(text, false).read();
}

CpuSet CpuSet::parse_mask(std::string_view text) {
  const std::string_view whole = trim(text);
  auto fail = [whole](std::string why) {
    throw Error(EINVAL,
                {.attempted = fmt::format("read the core mask {}", quoted(whole)),
                 .why = std::move(why),
                 .remedy = "Write a hexadecimal number with a bit per CPU, like 0xf for CPUs 0 to 3"});
  };
  const bool prefixed = whole.starts_with("0x") || whole.starts_with("0X");
  const std::string_view digits = whole.substr(prefixed ? 2 : 0);
  if (digits.empty()) fail("it has no digits");

  CpuSet set;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const auto value = hex_value(digits[i]);
    if (!value) {
      fail(fmt::format("'{}' at position {} is not a hexadecimal digit", digits[i],
                       i + 1 + (prefixed ? 2 : 0)));
    }
    const std::size_t lowest_bit = (digits.size() - 1 - i) * 4;
    for (unsigned bit = 4; bit-- > 0;) {
      if ((*value >> bit & 1U) == 0) continue;
      if (lowest_bit + bit >= limit) fail(beyond("bit", fmt::to_string(lowest_bit + bit)));
      set.add(static_cast<unsigned>(lowest_bit) + bit);
    }
  }
  if (set.empty()) fail("it has no bit set");
  return set;
}

void CpuSet::add(unsigned cpu) {
  if (cpu >= limit) {
    throw Error(EINVAL, {.attempted = "use a CPU", .why = beyond("CPU", fmt::to_string(cpu))});
  }
  cpus_.insert(cpu);
}

std::string CpuSet::list() const {
  if (empty()) return "none";
  std::string out;
  for (auto it = begin(); it != end();) {
    const unsigned first = *it;
    unsigned last = first;
    while (++it != end() && *it == last + 1) last = *it;
    if (!out.empty()) out += ',';
    out += first == last ? fmt::to_string(first) : fmt::format("{}-{}", first, last);
  }
  return out;
}

CpuSet operator&(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::ranges::set_intersection(a, b, std::inserter(out.cpus_, out.cpus_.end()));
  return out;
}

CpuSet operator|(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::ranges::set_union(a, b, std::inserter(out.cpus_, out.cpus_.end()));
  return out;
}

CpuSet operator-(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::ranges::set_difference(a, b, std::inserter(out.cpus_, out.cpus_.end()));
  return out;
}

std::string lcores_text(const CpuSet& cpus) {
  return fmt::format("{} {}", cpus.size() == 1 ? "lcore" : "lcores", cpus.list());
}

}  // namespace pollen::lcore
