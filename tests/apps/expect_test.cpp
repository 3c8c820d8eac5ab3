#include "expect.hpp"

#include <doctest/doctest.h>

#include <string>

#include "pollen/base/error.hpp"

using namespace pollen;
using bw::Expectation;
using bw::Figure;
using bw::Figures;
using bw::judge;
using bw::parse_expectation;

namespace {

std::string refusal(const char* text) {
  try {
    parse_expectation(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& sentence, const char* part) { return sentence.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("An expectation is a figure, a comparison and a bound with its unit") {
  const Expectation bw = parse_expectation("bw>=10Gb/s");
  CHECK(bw.figure == Figure::bw);
  CHECK(bw.op == Expectation::Op::at_least);
  CHECK(bw.bound == doctest::Approx(10e9));
  CHECK(parse_expectation("bw_min > 1 GiB/s").bound == doctest::Approx(8.0 * 1073741824));
  CHECK(parse_expectation("rate>=4M/s").bound == doctest::Approx(4e6));
  CHECK(parse_expectation("rate>=4Mpps").bound == doctest::Approx(4e6));
  CHECK(parse_expectation("lost<=1%").bound == doctest::Approx(1));
  CHECK(parse_expectation("post<6ns").op == Expectation::Op::below);
  CHECK(parse_expectation("errors<=0").bound == doctest::Approx(0));
}

TEST_CASE("An expectation that says nothing is refused in words") {
  CHECK(says(refusal("bw"), "it has no comparison"));
  CHECK(says(refusal("speed>=1Gb/s"), "there is no figure 'speed'"));
  CHECK(says(refusal("bw>=10"), "its unit is missing"));
  CHECK(says(refusal("bw>=fast"), "it does not begin with a number"));
  CHECK(says(refusal("bw>=10Gb"), "'Gb' is no unit"));
  CHECK(says(refusal("bw>=4M/s"), "Use b/s or B/s for bw"));
  CHECK(says(refusal("rate>=4Mb/s"), "Use /s for rate"));
  CHECK(says(refusal("lost<=1"), "its unit is missing"));
  CHECK(says(refusal("post<=1%"), "'%' is not the unit of post"));
  CHECK(says(refusal("bw=>1Gb/s"), "its comparison is none of"));
  CHECK(says(refusal("bw==1Gb/s"), "its comparison is none of"));
  CHECK(says(refusal("lost<=-1%"), "below 0"));
}

TEST_CASE("A verdict says which figure was missed and by how much") {
  Figures figures;
  figures.bw_bits_per_s = 8e9;
  const auto missed = judge(parse_expectation("bw>=10Gb/s"), figures);
  CHECK_FALSE(missed.met);
  CHECK(missed.sentence == "bw>=10Gb/s is not met: 8.000 Gb/s, 2.000 Gb/s below (20.0 %)");
  CHECK(judge(parse_expectation("bw>=8Gb/s"), figures).met);
  CHECK_FALSE(judge(parse_expectation("bw>8Gb/s"), figures).met);
  CHECK(judge(parse_expectation("bw<=1GB/s"), figures).met);
  CHECK_FALSE(judge(parse_expectation("bw<1GB/s"), figures).met);
}

TEST_CASE("An expectation on a figure that the test does not have is not met") {
  const auto verdict = judge(parse_expectation("post<=10ns"), Figures{});
  CHECK_FALSE(verdict.met);
  CHECK(says(verdict.sentence, "this test has no figure 'post'"));
}
