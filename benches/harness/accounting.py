"""Resources of a server: CPU time and disk bandwidth by control group (v1 or v2), memory by /proc."""

import os
import pathlib
import re
import signal
import time

CGROUP_ROOT = pathlib.Path("/sys/fs/cgroup")


class ControlGroup:
    """A control group of one server process and its children."""

    def __init__(self, name):
        self._is_v1 = (CGROUP_ROOT / "cpuacct").is_dir()
        if self._is_v1:
            self._cpu = CGROUP_ROOT / "cpuacct" / name
            self._blkio = CGROUP_ROOT / "blkio" / name
            self._directories = [self._cpu, self._blkio]
        else:
            enable_io_controller()
            self._cpu = self._blkio = CGROUP_ROOT / name
            self._directories = [self._cpu]
        for directory in self._directories:
            try:
                directory.mkdir()
            except PermissionError:
                raise SystemExit(f"cannot make {directory}: CPU time is read from a control group, which needs root")
        self.cpu_usage_file = self._cpu / ("cpuacct.usage" if self._is_v1 else "cpu.stat")

    def join(self):
        """Puts the calling process into the group; its children follow."""
        for directory in self._directories:
            (directory / "cgroup.procs").write_text("0")

    def statistics_directories(self):
        """Directories with its CPU time, and its memory if the group has it."""
        return [self._cpu]

    def process_ids(self):
        return [int(line) for line in (self._cpu / "cgroup.procs").read_text().split()]

    def cpu_us(self):
        text = self.cpu_usage_file.read_text()
        return int(text) / 1e3 if self._is_v1 else int(re.search(r"usage_usec (\d+)", text)[1])

    def throttle_reads(self, directory, bytes_per_second):
        """Limits reads from the disk that holds `directory`; None lifts the limit."""
        device = os.stat(directory).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        if self._is_v1:
            (self._blkio / "blkio.throttle.read_bps_device").write_text(f"{number} {bytes_per_second or 0}")
        else:
            (self._blkio / "io.max").write_text(f"{number} rbps={bytes_per_second or 'max'}")

    def remove(self):
        """Ends what is left in the group, and the group."""
        for _ in range(200):
            left = self.process_ids()
            if not left:
                break
            for process_id in left:
                try:
                    os.kill(process_id, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        for directory in self._directories:
            for _ in range(50):
                try:
                    directory.rmdir()
                    break
                except OSError:  # A process that has just ended is still being taken out.
                    time.sleep(0.02)


def enable_io_controller():
    """Version 2 gives a group the `io.max` file only if its parent says so; the CPU usage is always there."""
    try:
        (CGROUP_ROOT / "cgroup.subtree_control").write_text("+io")
    except OSError:
        pass


def user_memory_bytes(process_ids):
    """Anonymous memory of the processes, shared pages counted once: not the files they map, nor the kernel's buffers."""
    total = 0
    for process_id in process_ids:
        try:
            text = pathlib.Path(f"/proc/{process_id}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(re.search(r"Pss_Anon:\s+(\d+)", text)[1]) << 10
    return total
