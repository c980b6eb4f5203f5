"""Machine that the figures were measured on."""

import os
import pathlib
import platform
import re

from . import network


def describe():
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return {
        "kernel": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1),
        "virtual": "hypervisor" in pathlib.Path("/proc/cpuinfo").read_text(),
        "network": "loopback",
        "congestion_control": network.congestion_control(),
    }
