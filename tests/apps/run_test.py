"""What rdma_bw can run: operations, directions, lcores, options."""

import os
import subprocess
import unittest

from rdma_bw import Case, LCORES, rows

SMALL = ("-s", 1024, "-n", 300)


class Run(Case):
    def test_every_operation_runs_between_two_processes(self):
        for op in ("send", "write", "read", "write_imm"):
            with self.subTest(op=op):
                _, client = self.pair("--op", op, *SMALL)
                self.assertEqual(rows(client.out)[-1][:2], [1024, 300])
        self.assert_nothing_left()

    def test_datagrams_run_between_two_processes(self):
        server, client = self.pair("--op", "send", "-c", "UD", *SMALL)
        self.assertIn("datagrams", client.out)
        self.assertIn("datagrams", server.out)

    def test_every_operation_runs_both_ways(self):
        for op in ("send", "write", "read", "write_imm"):
            with self.subTest(op=op):
                server, client = self.pair("--op", op, "-b", *SMALL)
                self.assertEqual(rows(client.out)[-1][1], 600)
                self.assertEqual(rows(server.out)[-1][1], 600)

    def test_every_operation_delivers_every_byte(self):
        for op in ("send", "write", "read", "write_imm"):
            for size in (1, 4097, 100000):
                with self.subTest(op=op, size=size):
                    _, client = self.pair("--op", op, "-b", "--data_validation", "-s", size, "-n", 300, "-q", 2)
                    self.assertRegex(client.out, r"Data validation: [1-9]\d* messages of \d+ bytes checked, 0 damaged")

    def test_every_byte_arrives_once_in_spite_of_faults(self):
        faults = ("--soft-faults", "loss=0.01,dup=0.01,reorder=0.01,corrupt=0.01,seed=5")
        for op in ("send", "write", "read", "write_imm"):
            with self.subTest(op=op):
                _, client = self.pair("--op", op, "--data_validation", "-s", 9000, "-n", 200, *faults, server=faults)
                self.assertIn(" 0 damaged", client.out)
                self.assertIn("loss=0.01", client.out)

    def test_a_damaged_message_is_found(self):
        self.need_two_lcores()
        for op in ("send", "write", "write_imm"):
            with self.subTest(op=op):
                server = self.server()
                client = self.client("--op", op, "--data_validation", "-s", 500, "-n", 100, "--corrupt_message", 99)
                self.assertEqual(client.end(), 4, client.err)
                self.assertEqual(server.end(), 4, server.err)
                self.assertRegex(client.out, r"1 damaged, first: message 99 of QP \d+ differs from byte 250 on")
        code, both = self.run_one("--loopback", "--op", "read", "--data_validation", "-s", 500, "-n", 100,
                                  "--corrupt_message", 99)
        self.assertEqual(code, 4, both.err)
        self.assertRegex(both.out, r"1 damaged, first: message 99 of QP \d+ differs from byte 250 on")

    def test_the_server_adopts_what_the_client_was_given(self):
        server, client = self.pair("--op", "send", "-s", "2K", "-n", 77, "-q", 3)
        self.assertEqual(rows(client.out)[-1][:2], [2048, 231])
        self.assertEqual(rows(server.out)[-1][:2], [2048, 231])

    def test_the_client_adopts_what_the_server_was_given(self):
        _, client = self.pair(server=("--op", "read", "-s", "512", "-n", "50"))
        self.assertIn("RDMA_Read BW Test", client.out)
        self.assertEqual(rows(client.out)[-1][:2], [512, 50])

    def test_the_smaller_mtu_holds(self):
        server, client = self.pair("-m", 1024, *SMALL)
        self.assertIn("MTU: 1024 bytes", client.out)
        self.assertIn("MTU: 1024 bytes", server.out)

    def test_all_sizes_get_a_row_each(self):
        server, client = self.pair("-a", "-n", 20)
        sizes = [1 << power for power in range(1, 24)]
        self.assertEqual([row[0] for row in rows(client.out)], sizes)
        self.assertEqual([row[0] for row in rows(server.out)], sizes)
        _, client = self.pair("-a", "-n", 20, "--op", "send", "-c", "UD")
        self.assertEqual(rows(client.out)[-1][0], 4096)

    def test_a_test_of_seconds_measures_its_window(self):
        _, client = self.pair("-D", 1, "-s", 4096)
        self.assertRegex(client.out, r"messages of 4096 bytes in \d+\.\d+ s")
        self.assertRegex(client.out, r"Windows +: \d+ of .*: min .*, mean .*, max ")

    def test_each_lcore_has_a_row(self):
        self.need_two_lcores()
        first, second = LCORES[:2], LCORES[2:4]
        prefix = ()
        if len(second) < 2:
            # Both sides on the same two: lcores are locked in /run, of which the server gets another.
            second = first
            prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh")
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
                self.skipTest(f"two lcores a side need four CPUs, {len(LCORES)} are allowed here")
        server = self.start("-p", self.port, "--lcores", ",".join(map(str, second)), "--idle", "sleep", prefix=prefix)
        server.wait_for("TCP port")
        client = self.client("--lcores", ",".join(map(str, first)), "--idle", "sleep", "--op", "send", "-q", 2,
                             "--data_validation", *SMALL)
        self.assertEqual(client.end(), 0, client.err)
        self.assertEqual(server.end(), 0, server.err)
        for process in (client, server):
            table = rows(process.out)
            self.assertEqual([row[1] for row in table], [600, 600, 1200])
        self.assertIn("1200 messages of 1024 bytes checked, 0 damaged", client.out)

    def test_both_sides_run_in_one_process(self):
        for extra in ((), ("--soft-wire", "inproc"), ("-b",), ("--lcores", LCORES[0])):
            with self.subTest(extra=extra):
                code, process = self.run_one("--loopback", *SMALL, *extra)
                self.assertEqual(code, 0, process.err)
                self.assertEqual(len(rows(process.out)), 1)
        self.assert_nothing_left()

    def test_the_in_process_wire_leaves_shared_memory_alone(self):
        code, process = self.run_one("--loopback", "--soft-wire", "inproc", *SMALL)
        self.assertEqual(code, 0, process.err)
        self.assertFalse(os.path.exists(self.shm))

    def test_cores_may_be_named_as_for_dpdk(self):
        code, process = self.run_one("-l", LCORES[0], "--idle", "sleep", "--", "--loopback", "-l", 4, *SMALL)
        self.assertEqual(code, 0, process.err)
        self.assertIn("Post list: 4", process.out)
        self.assertIn("Idle: sleep", process.out)

    def test_requests_can_be_posted_in_lists_signalled_rarely_and_inline(self):
        for options in (("-l", 1), ("-l", 32), ("-l", 7), ("-Q", 1), ("-Q", 100), ("-t", 1), ("-r", 1), ("-r", 3),
                        ("-I", 64), ("-I", 500), ("-t", 3, "-Q", 64)):
            for op in ("send", "write_imm"):
                with self.subTest(options=options, op=op):
                    code, process = self.run_one("--loopback", "--op", op, "-s", 64, "-n", 999, "--data_validation",
                                                 *options)
                    self.assertEqual(code, 0, process.err)
                    self.assertIn(" 0 damaged", process.out)

    def test_a_list_is_one_doorbell(self):
        def doorbells(*options):
            path = self.path("report.json")
            code, process = self.run_one("--loopback", "-s", 64, "-n", 1000, "--out_json_file", path, *options)
            self.assertEqual(code, 0, process.err)
            import json
            with open(path, encoding="utf-8") as file:
                return json.load(file)["lcores"][0]["probe"]["counters"]["doorbells"]

        self.assertGreaterEqual(doorbells("-l", 1), 1000)
        # The queue's own NOPs, which close a tail, ring too.
        self.assertLess(doorbells("-l", 50), 200)

    def test_inline_beyond_the_device_is_cut_and_said(self):
        code, process = self.run_one("--loopback", "-I", 5000, *SMALL)
        self.assertEqual(code, 0, process.err)
        self.assertRegex(process.out, r"asked for 5000 inline bytes, given \d+")

    def test_a_rate_limit_holds(self):
        code, process = self.run_one("--loopback", "-s", 1000, "-n", 2000, "--rate_limit", "10K/s")
        self.assertEqual(code, 0, process.err)
        self.assertLessEqual(rows(process.out)[-1][4], 0.0105)
        code, process = self.run_one("--loopback", "-s", 1000, "-n", 2000, "--rate_limit", "0.08")
        self.assertEqual(code, 0, process.err)
        self.assertLessEqual(rows(process.out)[-1][4], 0.0105)
        self.assertIn("Rate limit     : 0.08 Gb/s", process.out)

    def test_a_capture_holds_the_packets(self):
        path = self.path("packets.pcap")
        code, process = self.run_one("--loopback", "--op", "send", "-s", 100, "-n", 10, "--soft-pcap", path)
        self.assertEqual(code, 0, process.err)
        self.assertGreater(os.path.getsize(path), 10 * 100)

    def test_copied_payloads_are_said(self):
        code, process = self.run_one("--loopback", "--soft-copy", *SMALL)
        self.assertEqual(code, 0, process.err)
        self.assertIn("payloads copied", process.out)

    def test_little_locked_memory_is_no_obstacle_to_the_software_nic(self):
        limit = ("prlimit", "--memlock=0:0")
        if subprocess.run([*limit, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("prlimit can't lower the limit here")
        code, process = self.run_one("--loopback", *SMALL, prefix=limit)
        self.assertEqual(code, 0, process.err)

    def test_the_kind_of_pages_is_said(self):
        code, process = self.run_one("--loopback", *SMALL)
        self.assertEqual(code, 0, process.err)
        self.assertRegex(process.out, r"arena: .* pages")


if __name__ == "__main__":
    unittest.main()
