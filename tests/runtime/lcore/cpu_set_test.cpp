#include "pollen/lcore/cpu_set.hpp"

#include <doctest/doctest.h>

#include "expect.hpp"
#include "pollen/lcore/affinity.hpp"

using pollen::lcore::CpuSet;
using pollen::lcore::error_of;
using pollen::lcore::has;

namespace {

std::string list_error(std::string_view text) {
  return error_of([text] { CpuSet::parse_list(text); });
}

std::string mask_error(std::string_view text) {
  return error_of([text] { CpuSet::parse_mask(text); });
}

}  // namespace

TEST_SUITE("lcore.cpu_set") {
  TEST_CASE("a core list gives numbers and ranges, in any order and beyond 1024") {
    CHECK(CpuSet::parse_list("0-3,8") == CpuSet{0, 1, 2, 3, 8});
    CHECK(CpuSet::parse_list("8,0-3") == CpuSet{0, 1, 2, 3, 8});
    CHECK(CpuSet::parse_list("5-5") == CpuSet{5});
    CHECK(CpuSet::parse_list(" 7 ") == CpuSet{7});
    CHECK(CpuSet::parse_list("64,1025,8191") == CpuSet{64, 1025, 8191});
    CHECK(CpuSet::parse_list("0-8191").size() == 8192);
    CHECK(CpuSet::parse_list("0007") == CpuSet{7});
  }

  TEST_CASE("a wrong core list is refused with the position and the cause") {
    CHECK(has(list_error(""), "a CPU number is missing at position 1"));
    CHECK(has(list_error("0,"), "a CPU number is missing at position 3"));
    CHECK(has(list_error(",0"), "',' at position 1 is not a CPU number"));
    CHECK(has(list_error("0,,1"), "',' at position 3 is not a CPU number"));
    CHECK(has(list_error("3-1"), "the range 3-1 at position 1 runs backwards"));
    CHECK(has(list_error("0-3,2"), "2 at position 5 names CPU 2 a second time"));
    CHECK(has(list_error("0-3,2-9"), "2-9 at position 5 names CPU 2 a second time"));
    CHECK(has(list_error("0-"), "a CPU number is missing at position 3"));
    CHECK(has(list_error("-1"), "'-' at position 1 is not a CPU number"));
    CHECK(has(list_error("1-2-3"), "'-' at position 4 does not belong there"));
    CHECK(has(list_error("1 2"), "' ' at position 2 does not belong there"));
    CHECK(has(list_error("0x3"), "'x' at position 2 does not belong there"));
    CHECK(has(list_error("(0-3)@0"), "'(' at position 1 is not a CPU number"));
  }

  TEST_CASE("a CPU number that no kernel has is refused, however many digits it has") {
    CHECK(has(list_error("8192"), "CPU 8192 is beyond 8191"));
    CHECK(has(list_error("0-9000"), "CPU 9000 is beyond 8191"));
    CHECK(has(list_error("18446744073709551616"), "CPU 18446744073709551616 is beyond 8191"));
    CHECK(list_error(std::string(100'000, '9')).size() < 400);
    CHECK(has(error_of([] { CpuSet{8192}; }), "CPU 8192 is beyond 8191"));
  }

  TEST_CASE("a core mask gives its bits, with and without 0x, of any length") {
    CHECK(CpuSet::parse_mask("0xf") == CpuSet{0, 1, 2, 3});
    CHECK(CpuSet::parse_mask("f") == CpuSet{0, 1, 2, 3});
    CHECK(CpuSet::parse_mask("0XaA") == CpuSet{1, 3, 5, 7});
    CHECK(CpuSet::parse_mask("1" + std::string(16, '0')) == CpuSet{64});
    CHECK(CpuSet::parse_mask("0x1" + std::string(500, '0')) == CpuSet{2000});
    CHECK(CpuSet::parse_mask("8" + std::string(2047, '0')) == CpuSet{8191});
    CHECK(CpuSet::parse_mask(std::string(5000, '0') + "1") == CpuSet{0});
  }

  TEST_CASE("a wrong core mask is refused with the position and the cause") {
    CHECK(has(mask_error(""), "it has no digits"));
    CHECK(has(mask_error("0x"), "it has no digits"));
    CHECK(has(mask_error("0x00"), "it has no bit set"));
    CHECK(has(mask_error("0xfg"), "'g' at position 4 is not a hexadecimal digit"));
    CHECK(has(mask_error("0-3"), "'-' at position 2 is not a hexadecimal digit"));
    CHECK(has(mask_error("1" + std::string(2048, '0')), "bit 8192 is beyond 8191"));
    CHECK(mask_error(std::string(100'000, 'f')).size() < 400);
  }

  TEST_CASE("the kernel's lists may be empty and end with a line break") {
    CHECK(CpuSet::parse_kernel_list("0-3,8\n") == CpuSet{0, 1, 2, 3, 8});
    CHECK(CpuSet::parse_kernel_list("\n").empty());
    CHECK(CpuSet::parse_kernel_list("").empty());
    CHECK(has(error_of([] { CpuSet::parse_kernel_list("what\n"); }), "'w' at position 1"));
  }

  TEST_CASE("a set is written as the list that reads back as the same set") {
    CHECK(CpuSet{}.list() == "none");
    CHECK(CpuSet{3}.list() == "3");
    CHECK(CpuSet{0, 1}.list() == "0-1");
    for (const char* text : {"0-3,8", "1,3,5", "0,64-127,1025", "8191"}) {
      CHECK(CpuSet::parse_list(text).list() == text);
    }
  }

  TEST_CASE("sets intersect, unite and subtract") {
    const CpuSet a{0, 1, 2, 1025};
    const CpuSet b{2, 3, 1025};
    CHECK((a & b) == CpuSet{2, 1025});
    CHECK((a | b) == CpuSet{0, 1, 2, 3, 1025});
    CHECK((a - b) == CpuSet{0, 1});
    CHECK((b - b).empty());
  }

  TEST_CASE("a thread's affinity mask is read, narrowed and restored") {
    const CpuSet before = pollen::lcore::affinity();
    REQUIRE(!before.empty());
    const CpuSet one{*before.begin()};
    pollen::lcore::set_affinity(one);
    CHECK(pollen::lcore::affinity() == one);
    pollen::lcore::set_affinity(before);
    CHECK(pollen::lcore::affinity() == before);
  }

  TEST_CASE("pinning to CPUs that are not there is refused by name") {
    CHECK(has(error_of([] { pollen::lcore::set_affinity(CpuSet{8191}); }), "pin a thread to lcore 8191"));
  }
}
