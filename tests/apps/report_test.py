"""What rdma_bw says: columns, units, JSON, expectations."""

import json
import os
import unittest

from rdma_bw import Case, rows

SMALL = ("--loopback", "-s", 4096, "-n", 500)
MIB = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
GB = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"


class Report(Case):
    def document(self, *arguments, code=0):
        path = self.path("report.json")
        ended, process = self.run_one(*SMALL, "--out_json_file", path, *arguments)
        self.assertEqual(ended, code, process.err)
        with open(path, encoding="utf-8") as file:
            return json.load(file), process

    def test_columns_are_those_of_perftest(self):
        _, process = self.run_one(*SMALL)
        self.assertIn(MIB, process.out.splitlines())
        _, process = self.run_one(*SMALL, "--report_gbits")
        self.assertIn(GB, process.out.splitlines())
        _, process = self.run_one(*SMALL, "--cpu_util")
        self.assertIn(MIB + "    CPU_Util[%]", process.out.splitlines())

    def test_rates_are_of_the_same_messages_in_both_units(self):
        for option, bits in ((), 8 * 1048576), (("--report_gbits",), 1e9):
            _, process = self.run_one(*SMALL, *option)
            size, count, peak, average, mpps = rows(process.out)[-1]
            self.assertEqual((size, count), (4096, 500))
            self.assertGreaterEqual(peak, average)
            # The table rounds to two places.
            self.assertAlmostEqual(average, mpps * 1e6 * size * 8 / bits, delta=0.01 + average * 1e-3)

    def test_a_report_says_what_it_ran_on(self):
        _, process = self.run_one(*SMALL)
        self.assertIn("soft0 (software NIC in this process, not a real one", process.out)
        self.assertRegex(process.out, r"Driver +: soft: ")
        self.assertRegex(process.out, r"hardware counters: ")
        self.assertRegex(process.out, r"lcore \d+: lost ")

    def test_the_json_report_has_its_schema(self):
        document, process = self.document()
        self.assertEqual(set(document), {"test_info", "units", "results", "windows", "lcores", "peer_lcores",
                                         "expectations", "notes"})
        result = document["results"]
        self.assertEqual(result["MsgSize"], 4096)
        self.assertEqual(result["n_iterations"], 500)
        for figure in ("BW_peak", "BW_average", "MsgRate"):
            self.assertGreater(result[figure], 0)
        self.assertEqual(document["units"]["BW_average"], "MiB/s")
        self.assertAlmostEqual(result["BW_average"], rows(process.out)[-1][3], delta=0.01)
        info = document["test_info"]
        self.assertEqual(info["Device"], "soft0")
        self.assertEqual(info["driver"], "soft")
        self.assertIn("not a real one", info["device_description"])
        lcore = document["lcores"][0]
        self.assertEqual(lcore["sent"], 500)
        self.assertEqual(set(lcore["probe"]), {"lcore", "counters", "preemption", "hardware"})
        self.assertIn("post_ns_per_wr", lcore["probe"]["counters"])
        self.assertEqual(len(document["peer_lcores"]), 1)
        self.assertEqual(set(document["windows"]), {"MsgSize", "count", "width_ns", "bytes_per_s", "messages_per_s"})

    def test_the_json_report_of_several_sizes_has_all_of_them(self):
        path = self.path("report.json")
        code, process = self.run_one("--loopback", "-a", "-n", 20, "--out_json_file", path, "--report_gbits")
        self.assertEqual(code, 0, process.err)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual([one["MsgSize"] for one in document["results"]], [1 << power for power in range(1, 24)])
        self.assertEqual(len(document["windows"]), 23)
        self.assertEqual(document["units"]["BW_peak"], "Gb/s")

    def test_the_json_report_may_be_standard_output_and_is_then_all_of_it(self):
        code, process = self.run_one(*SMALL, "--out_json_file", "-")
        self.assertEqual(code, 0, process.err)
        self.assertEqual(json.loads(process.out)["results"]["n_iterations"], 500)
        self.assertIn(MIB, process.err)

    def test_the_json_report_has_perftests_file_by_default(self):
        code, process = self.run_one(*SMALL, "--out_json", prefix=("env", "-C", self.home))
        self.assertEqual(code, 0, process.err)
        with open(self.path("perftest_out.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["results"]["n_iterations"], 500)

    def test_both_processes_can_write_a_report(self):
        self.pair("-s", 1024, "-n", 100, "--out_json_file", self.path("client.json"),
                  server=("--out_json_file", self.path("server.json")))
        with open(self.path("client.json"), encoding="utf-8") as file:
            client = json.load(file)
        with open(self.path("server.json"), encoding="utf-8") as file:
            server = json.load(file)
        self.assertEqual((client["test_info"]["role"], server["test_info"]["role"]), ("client", "server"))
        self.assertEqual(client["results"]["n_iterations"], server["results"]["n_iterations"])
        self.assertAlmostEqual(client["results"]["BW_average"], server["results"]["BW_average"], delta=0.01)

    def test_expectations_that_are_met_change_nothing(self):
        code, process = self.run_one(*SMALL, "--expect", "bw>=1b/s", "--expect", "rate>0/s", "--expect", "lost<=100%")
        self.assertEqual(code, 0, process.err)
        self.assertIn("bw>=1b/s is met", process.out)

    def test_an_expectation_that_is_not_met_has_an_exit_code_of_its_own(self):
        document, process = self.document("--expect", "bw>=1b/s", "--expect", "bw>=900000Gb/s", code=3)
        self.assertIn("bw>=900000Gb/s is not met", process.out)
        self.assertEqual([one["met"] for one in document["expectations"]], [True, False])

    def test_validation_is_a_figure_to_expect(self):
        code, process = self.run_one(*SMALL, "--op", "send", "--data_validation", "--expect", "errors<=0")
        self.assertEqual(code, 0, process.err)

    def test_an_expectation_that_makes_no_sense_is_refused_before_the_run(self):
        self.assert_refused(["--loopback", "--expect", "bw>=10"], "its unit is missing", codes=(2,))

    def test_a_report_that_cannot_be_written_is_refused_before_the_run(self):
        self.assert_refused(["--loopback", "--out_json_file", self.path("no/such/dir.json")], "dir.json")
        self.assert_refused(["--loopback", "--out_json_file", self.home], "directory")
        self.assertEqual(os.listdir(self.home), [])

    def test_help_names_every_option_that_perftest_users_know(self):
        code, process = self.run_one("--help")
        self.assertEqual(code, 0)
        for option in ("-s", "-a", "-n", "-D", "-q", "-t", "-r", "-b", "-l", "-Q", "-I", "-m", "-d", "-i", "-x", "-p",
                       "-F", "-c", "--report_gbits", "--out_json", "--out_json_file", "--run_infinitely",
                       "--rate_limit", "--data_validation", "--cpu_util", "--lcores", "--core-mask", "--expect"):
            self.assertRegex(process.out, rf"(?m)[ ,]{option}\b")


if __name__ == "__main__":
    unittest.main()
