#include "pollen/base/error.hpp"

#include <doctest/doctest.h>

#include <cerrno>

TEST_SUITE("base.error") {
  TEST_CASE("the sentence names the attempt, the place, the cause and the way out") {
    const pollen::Error error(ENOMEM, {.attempted = "pin 64 MiB",
                                       .on = "soft0",
                                       .why = "RLIMIT_MEMLOCK is 8 MiB",
                                       .remedy = "Raise it: ulimit -l 65536"});
    CHECK(std::string(error.what()) ==
          "cannot pin 64 MiB on soft0: RLIMIT_MEMLOCK is 8 MiB. Raise it: ulimit -l 65536");
    CHECK(error.code().value() == ENOMEM);
  }

  TEST_CASE("without a cause the error code's own text stands in") {
    const pollen::Error error(ENOENT, {.attempted = "open /x"});
    CHECK(std::string(error.what()) == "cannot open /x: No such file or directory");
  }
}
