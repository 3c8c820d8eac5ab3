"""Processes of rdma_bw for the end-to-end suites: each in a process group of its own, each with a time limit,
and each pair with shared memory of its own, of which nothing may be left."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

PROGRAM = os.environ["RDMA_BW"]
LIMIT_S = 120  # of a process that should have ended by itself; machines may be busy
LCORES = sorted(os.sched_getaffinity(0))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """Standard output and standard error are read as they come."""

    def __init__(self, arguments, env, prefix=()):
        self.child = subprocess.Popen([*prefix, PROGRAM, *arguments], env=env, text=True, start_new_session=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.out, self.err = "", ""
        self.news = threading.Condition()
        self.readers = [threading.Thread(target=self._read, args=(stream, name), daemon=True)
                        for stream, name in ((self.child.stdout, "out"), (self.child.stderr, "err"))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, name):
        for line in stream:
            with self.news:
                setattr(self, name, getattr(self, name) + line)
                self.news.notify_all()
        stream.close()

    def wait_for(self, text):
        deadline = time.monotonic() + LIMIT_S
        with self.news:
            while text not in self.out + self.err:
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{text!r} never came:\n{self.out}\n{self.err}")
                self.news.wait(0.2)

    def end(self):
        """Waits for the end; returns the exit code."""
        try:
            code = self.child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end in {LIMIT_S} s:\n{self.out}\n{self.err}") from None
        for reader in self.readers:
            reader.join()
        return code

    def send(self, number):
        self.child.send_signal(number)

    def kill(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp(prefix="pollen-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.shm = os.path.join(self.home, "shm")
        self.env = {**os.environ, "POLLEN_SHM_DIR": self.shm}
        self.port = free_port()
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.home, name)

    def start(self, *arguments, prefix=(), env=None):
        process = Process([str(one) for one in arguments], env or self.env, prefix)
        self.processes.append(process)
        return process

    def run_one(self, *arguments, **how):
        process = self.start(*arguments, **how)
        return process.end(), process

    def server(self, *arguments):
        process = self.start("-p", self.port, *arguments)
        process.wait_for("TCP port")
        return process

    def client(self, *arguments):
        return self.start("-p", self.port, "localhost", *arguments)

    def pair(self, *arguments, server=()):
        """Runs a server and a client, both of which have to end well."""
        self.need_two_lcores()
        a_server = self.server(*server)
        a_client = self.client(*arguments)
        code = a_client.end()
        self.assertEqual(code, 0, a_client.err + a_client.out + a_server.err)
        code = a_server.end()
        self.assertEqual(code, 0, a_server.err + a_server.out)
        return a_server, a_client

    def need_two_lcores(self):
        if len(LCORES) < 2:
            self.skipTest("a server and a client need an lcore each, and only one CPU is allowed here")

    def assert_refused(self, arguments, *words, codes=(1, 2), **how):
        """Ends with an exit code that is not 0 and one sentence with these words."""
        code, process = self.run_one(*arguments, **how)
        self.assertIn(code, codes, process.out + process.err)
        self.assert_sentence(process, *words)

    def assert_sentence(self, process, *words):
        sentences = [line for line in process.err.splitlines() if line.startswith("rdma_bw: ")]
        self.assertEqual(len(sentences), 1, process.err)
        for word in words:
            self.assertIn(word, sentences[0])

    def assert_nothing_left(self):
        """No engine of a process that is gone, in shared memory or out of it."""
        if os.path.isdir(self.shm):
            left = [name for name in os.listdir(self.shm) if "." in name]
            self.assertEqual(left, [])
        others = [name for name in os.listdir(self.home) if name != "shm"]
        self.assertEqual(others, [])


def rows(text):
    """The rows of perftest's table as lists of numbers, the last one of the sum."""
    table = []
    seen = False
    for line in text.splitlines():
        if line.startswith(" #bytes"):
            seen = True
            continue
        fields = line.split()
        if seen and len(fields) >= 5 and fields[0].isdigit():
            table.append([float(field) for field in fields[:5]])
        elif seen and line.startswith("---"):
            break
    return table
