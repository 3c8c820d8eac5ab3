// What an attempt says when it fails.
#pragma once

#include <string>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

template <typename Attempt>
std::string error_of(Attempt&& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pollen::lcore
