"""How a run of rdma_bw ends before its time: Ctrl-C on either side, a peer that is killed or falls silent."""

import json
import signal
import time
import unittest

from rdma_bw import Case, rows

LONG = ("-s", 4096, "-D", 600)


class End(Case):
    def running(self, *arguments):
        self.need_two_lcores()
        server = self.server()
        client = self.client(*LONG, *arguments)
        client.wait_for("#bytes")
        server.wait_for("#bytes")
        time.sleep(0.5)  # somewhere in the middle
        return server, client

    def test_ctrl_c_on_the_client_ends_both_with_their_statistics(self):
        server, client = self.running("--out_json_file", self.path("report.json"))
        client.send(signal.SIGINT)
        self.assertEqual(client.end(), 130, client.err)
        self.assertEqual(server.end(), 0, server.err)
        self.assertGreater(rows(client.out)[-1][1], 0)
        self.assertEqual(rows(client.out)[-1][1], rows(server.out)[-1][1])
        self.assertIn("ns/WR", client.out)
        with open(self.path("report.json"), encoding="utf-8") as file:
            self.assertTrue(json.load(file)["test_info"]["interrupted"])

    def test_ctrl_c_on_the_server_ends_both_with_their_statistics(self):
        for extra in ((), ("-b",)):
            with self.subTest(extra=extra):
                server, client = self.running("--op", "send", *extra)
                server.send(signal.SIGINT)
                self.assertEqual(server.end(), 130, server.err)
                self.assertEqual(client.end(), 0, client.err)
                self.assertGreater(rows(client.out)[-1][1], 0)
        self.assert_nothing_left()

    def test_sigterm_has_its_own_exit_code(self):
        server, client = self.running()
        client.send(signal.SIGTERM)
        self.assertEqual(client.end(), 128 + signal.SIGTERM, client.err)
        self.assertEqual(server.end(), 0, server.err)

    def test_ctrl_c_ends_a_server_that_waits(self):
        server = self.server()
        server.send(signal.SIGINT)
        self.assertEqual(server.end(), 130, server.err)
        self.assert_nothing_left()

    def test_ctrl_c_ends_a_client_that_finds_no_server(self):
        client = self.client()
        time.sleep(0.5)
        client.send(signal.SIGINT)
        self.assertIn(client.end(), (130,), client.err)

    def test_ctrl_c_ends_both_sides_in_one_process(self):
        process = self.start("--loopback", *LONG)
        process.wait_for("#bytes")
        time.sleep(0.5)
        process.send(signal.SIGINT)
        self.assertEqual(process.end(), 130, process.err)
        self.assertGreater(rows(process.out)[-1][1], 0)
        self.assert_nothing_left()

    def test_a_second_ctrl_c_ends_at_once(self):
        server, client = self.running()
        server.send(signal.SIGSTOP)  # so that the client has to wait for it
        client.send(signal.SIGINT)
        time.sleep(0.5)
        client.send(signal.SIGINT)
        self.assertEqual(client.end(), 130, client.err)
        server.send(signal.SIGCONT)
        self.assertNotEqual(server.end(), 0)

    def test_an_endless_run_prints_a_row_per_interval(self):
        self.need_two_lcores()
        server = self.server()
        client = self.client("--run_infinitely", "-D", 1, "-s", 4096)
        client.wait_for("#bytes")
        time.sleep(3.5)
        client.send(signal.SIGINT)
        self.assertEqual(client.end(), 130, client.err)
        self.assertEqual(server.end(), 0, server.err)
        self.assertGreaterEqual(len(rows(client.out)), 3)

    def test_a_server_whose_client_is_killed_says_so(self):
        for op in ("write", "send", "read"):
            with self.subTest(op=op):
                server, client = self.running("--op", op)
                client.kill()
                self.assertEqual(server.end(), 1, server.out)
                self.assert_sentence(server)
                self.assertRegex(server.err, r"the (client|peer) (is gone|closed it)|unless it was killed")

    def test_a_client_whose_server_is_killed_says_so(self):
        for op in ("write", "send", "read"):
            with self.subTest(op=op):
                server, client = self.running("--op", op)
                server.kill()
                self.assertEqual(client.end(), 1, client.out)
                self.assert_sentence(client)
                self.assertRegex(client.err, r"the (server|peer) (is gone|closed it)|unless it was killed")

    def test_what_a_killed_process_left_is_gone_after_the_next_run(self):
        server, client = self.running()
        client.kill()
        server.end()
        self.pair("-s", 1024, "-n", 100)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
