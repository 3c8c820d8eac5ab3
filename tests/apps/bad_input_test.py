"""What bad input gets: a sentence with the cause and the way out, an exit code that is not 0, nothing left behind."""

import os
import socket
import struct
import subprocess
import time
import unittest
import zlib

from rdma_bw import Case, LCORES, free_port

MAGIC = b"POLLEN\r\n"


def frame(version, kind, body):
    head = MAGIC + struct.pack(">HHI", version, kind, len(body)) + body
    return head + struct.pack(">I", zlib.crc32(head))


class Options(Case):
    def tearDown(self):
        self.assert_nothing_left()
        super().tearDown()

    def test_a_core_that_is_not_there(self):
        self.assert_refused(["--loopback", "--lcores", "8000"], "lcore 8000", "there is no such CPU")

    def test_a_core_outside_of_the_affinity_mask(self):
        if len(LCORES) < 2:
            self.skipTest("only one CPU is allowed here: there is none to forbid")
        self.assert_refused(["--loopback", "--lcores", LCORES[1]], f"lcore {LCORES[1]}", "affinity mask",
                            prefix=("taskset", "-c", str(LCORES[0])))

    def test_a_core_outside_of_the_cgroup(self):
        with Cpuset(self) as prefix:
            self.assert_refused(["--loopback", "--lcores", LCORES[1]], f"lcore {LCORES[1]}", "cpuset", prefix=prefix)

    def test_a_mask_with_bit_2000(self):
        self.assert_refused(["--loopback", "--core-mask", hex(1 << 2000)], "lcore 2000", "there is no such CPU")

    def test_masks_and_lists_that_are_none(self):
        self.assert_refused(["--loopback", "--core-mask", "xyz"], "xyz")
        self.assert_refused(["--loopback", "--core-mask", "0"], "0")
        self.assert_refused(["--loopback", "--lcores", "3-1"], "3-1")
        self.assert_refused(["--loopback", "--lcores", "0,0"], "0,0")

    def test_sizes(self):
        self.assert_refused(["--loopback", "-s", "0"], "0 bytes", "1 byte to 1 GiB")
        self.assert_refused(["--loopback", "-s", "3G"], "1 GiB at most")
        self.assert_refused(["--loopback", "-s", "64Q"], "64Q")
        self.assert_refused(["--loopback", "-s", "-1"], "-1")
        self.assert_refused(["--loopback", "--op", "send", "-c", "UD", "-s", "8192"], "MTU", "smaller -s")

    def test_depths(self):
        self.assert_refused(["--loopback", "-t", "0"], "-t", "1 to")
        self.assert_refused(["--loopback", "-r", "0"], "-r", "1 to")
        self.assert_refused(["--loopback", "-t", "100000"], "-t", "the device allows")
        self.assert_refused(["--loopback", "-r", "100000"], "-r", "the device allows")
        self.assert_refused(["--loopback", "-t", "30000", "-I", "800"], "-t", "smaller -t or -I")
        self.assert_refused(["--loopback", "-q", "16000", "-t", "32768"], "completion queue", "smaller -q")

    def test_numbers_that_are_none(self):
        for option in ("-n", "-D", "-q", "-t", "-r", "-l", "-Q", "-I", "-m", "-i", "-x", "-p", "--rate_limit"):
            with self.subTest(option=option):
                self.assert_refused(["--loopback", option, "many"], "many")

    def test_options_that_contradict_each_other(self):
        self.assert_refused(["--loopback", "-n", "10", "-D", "1"], "Give one of them")
        self.assert_refused(["--loopback", "-a", "-s", "64"], "Give one of them")
        self.assert_refused(["--loopback", "-a", "--run_infinitely"], "never ends")
        self.assert_refused(["--loopback", "somewhere"], "--loopback is both sides")
        self.assert_refused(["--soft-wire", "inproc"], "--loopback")
        self.assert_refused(["--loopback", "-c", "UD", "--op", "write"], "can only SEND")
        self.assert_refused(["--loopback", "-t", "8", "-l", "9"], "-l")
        self.assert_refused(["--loopback", "--no-such-option"], "--no-such-option", "--help")

    def test_a_device_a_port_and_a_gid_that_are_not_there(self):
        self.assert_refused(["--loopback", "-d", "mlx5_77"], "mlx5_77", "soft0")
        self.assert_refused(["--loopback", "--driver", "tape"], "tape", "soft")
        self.assert_refused(["--loopback", "-i", "9"], "port 9", "Use port 1")
        self.assert_refused(["--loopback", "-x", "77"], "77", "index 0")
        self.assert_refused(["--loopback", "-m", "1000"], "1000", "4096")

    def test_faults_and_captures_that_make_no_sense(self):
        self.assert_refused(["--loopback", "--soft-faults", "loss=2"], "loss=2")
        self.assert_refused(["--loopback", "--soft-pcap", "/no/such/dir/x.pcap"], "/no/such/dir")


class Cpuset:
    """A cgroup that allows the first CPU only; the prefix of a command that runs in it."""

    def __init__(self, case):
        self.case = case
        self.path = None

    def __enter__(self):
        if len(LCORES) < 2:
            self.case.skipTest("only one CPU is allowed here: there is none to forbid")
        for root in ("/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"):
            path = os.path.join(root, f"pollen-test-{os.getpid()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            self.path = path
            try:
                mems = next(name for name in ("cpuset.mems", "cpuset.mems.effective")
                            if os.path.exists(os.path.join(path, name)))
                with open(os.path.join(root, mems), encoding="ascii") as file:
                    nodes = file.read().strip()
                self.write("cpuset.cpus", str(LCORES[0]))
                self.write("cpuset.mems", nodes)
                subprocess.run(["sh", "-c", f"echo $$ > {path}/cgroup.procs"], check=True, capture_output=True)
            except (OSError, StopIteration, subprocess.CalledProcessError):
                self.__exit__()
                continue
            return ("sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh")
        self.case.skipTest("this user can make no cpuset cgroup here")

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(text)

    def __exit__(self, *_):
        if self.path:
            for _ in range(100):  # until the kernel has noticed that its last process ended
                try:
                    os.rmdir(self.path)
                    break
                except OSError:
                    time.sleep(0.05)
            self.path = None


class Memory(Case):
    def mounted(self, options, then=""):
        if os.geteuid() != 0:
            self.skipTest("mounting a file system of one's own takes root")
        os.mkdir(self.shm)
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mount namespace can be made here")
        return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs {options} tmpfs {self.shm} && {then} exec "$@"', "sh")

    def test_shared_memory_that_is_full(self):
        full = self.mounted("-o size=64k", f"dd if=/dev/zero of={self.shm}/filler bs=4k 2>/dev/null;")
        self.assert_refused(["--loopback", "-n", "10"], "full", "POLLEN_SHM_DIR", prefix=full)

    def test_shared_memory_that_fills_up(self):
        self.assert_refused(["--loopback", "-n", "10"], "full", "POLLEN_SHM_DIR", prefix=self.mounted("-o size=64k"))

    def test_shared_memory_that_is_read_only(self):
        self.assert_refused(["--loopback", "-n", "10"], "read-only", "POLLEN_SHM_DIR", prefix=self.mounted("-o ro"))

    def test_shared_memory_that_is_a_file(self):
        with open(self.shm, "w", encoding="ascii"):
            pass
        self.assert_refused(["--loopback", "-n", "10"], "not a directory")


class Lcores(Case):
    def test_a_second_app_on_the_same_lcore(self):
        first = self.server("--lcores", LCORES[0])
        self.assert_refused(["-p", free_port(), "--lcores", LCORES[0]], f"lcore {LCORES[0]}", str(first.child.pid))


class Network(Case):
    def connect(self):
        return socket.create_connection(("localhost", self.port), 30)

    def test_a_port_in_use(self):
        self.need_two_lcores()
        first = self.server()
        self.assert_refused(["-p", self.port], "in use", str(first.child.pid))

    def test_a_server_that_is_not_there(self):
        self.assert_refused(["-p", self.port, "localhost"], "nothing listens there", "Start the server first")

    def test_a_host_that_is_not_there(self):
        self.assert_refused(["-p", self.port, "no-such-host.invalid"], "no-such-host.invalid")
        self.assert_refused(["-p", self.port, "::bad::host::"], "::bad::host::")

    def test_garbage_costs_a_server_one_socket(self):
        self.need_two_lcores()
        server = self.server()
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(100), os.urandom(5000), MAGIC + b"\xff" * 100,
                        frame(1, 2, b"\xff" * 40)):
            with self.connect() as stranger:
                try:  # the server may hang up at any of these
                    stranger.sendall(garbage)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
                except OSError:
                    pass
        with self.connect():
            pass  # a port scan
        client = self.client("-s", 1024, "-n", 50)
        self.assertEqual(client.end(), 0, client.err)
        self.assertEqual(server.end(), 0, server.err)
        self.assertIn("still listening", server.err)

    def test_a_silent_peer_keeps_no_other_waiting(self):
        self.need_two_lcores()
        server = self.server()
        with self.connect(), self.connect():
            client = self.client("-s", 1024, "-n", 50)
            self.assertEqual(client.end(), 0, client.err)
            self.assertEqual(server.end(), 0, server.err)

    def test_a_silent_peer_is_given_up(self):
        server = self.server()
        with self.connect() as silent:
            silent.settimeout(60)
            self.assertEqual(silent.recv(1), b"")
        server.wait_for("said nothing")

    def test_a_server_that_says_nothing(self):
        with socket.create_server(("localhost", self.port)):
            self.assert_refused(["-p", self.port, "localhost"], "said nothing", codes=(1,))

    def test_a_server_that_talks_garbage(self):
        with socket.create_server(("localhost", self.port)) as listener:
            client = self.client()
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                self.assertEqual(client.end(), 1, client.err)
        self.assert_sentence(client, "does not speak Pollen's handshake")

    def test_a_client_of_another_version(self):
        server = self.server()
        with self.connect() as other:
            other.sendall(frame(2, 2, b"from the future"))
            answer = other.recv(4096)
        self.assertTrue(answer.startswith(MAGIC), answer)
        self.assertEqual(server.end(), 1, server.out)
        self.assert_sentence(server, "version 2", "same release")

    def test_a_server_of_another_version(self):
        with socket.create_server(("localhost", self.port)) as listener:
            client = self.client()
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(frame(7, 2, b"from the future"))
                self.assertEqual(client.end(), 1, client.err)
        self.assert_sentence(client, "version 7", "same release")

    def test_a_peer_with_contradicting_options(self):
        self.need_two_lcores()
        server = self.server("-s", 1024, "--op", "send")
        client = self.client("-s", 2048, "--op", "read")
        self.assertEqual(client.end(), 1, client.err)
        self.assertEqual(server.end(), 1, server.err)
        for process in (client, server):
            self.assert_sentence(process, "size (-s): the client has 2048, the server 1024",
                                 "op (--op): the client has read, the server send")

    def test_a_peer_with_another_number_of_lcores(self):
        if len(LCORES) < 3:
            self.skipTest(f"one lcore here and two there need three CPUs, {len(LCORES)} are allowed here")
        server = self.server("--lcores", LCORES[0])
        client = self.client("--lcores", f"{LCORES[1]},{LCORES[2]}")
        self.assertEqual(client.end(), 1, client.err)
        self.assertEqual(server.end(), 1, server.err)
        self.assert_sentence(client, "lcores")

    def test_a_peer_whose_device_can_do_less(self):
        self.need_two_lcores()
        server = self.server()
        client = self.client("--op", "send", "-c", "UD", "-s", 4096, "-m", 4096)
        self.assertEqual(client.end(), 0, client.err)
        self.assertEqual(server.end(), 0, server.err)
        server = self.server("-m", 1024)
        client = self.client("--op", "send", "-c", "UD", "-s", 4096)
        self.assertEqual(client.end(), 1, client.err)
        self.assertEqual(server.end(), 1, server.err)
        for process in (client, server):
            self.assert_sentence(process, "the MTU is 1024 bytes")


if __name__ == "__main__":
    unittest.main()
