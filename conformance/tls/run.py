"""Runs scripts of tlsfuzzer (github.com/tlsfuzzer/tlsfuzzer) against a server and prints a table of what failed.

    pip install --pre tlslite-ng
    python3 conformance/tls/run.py TLSFUZZER_DIRECTORY HOST PORT [SCRIPT...]

The server has a certificate with an RSA key. It exits with 1 if a conversation fails that `expected.txt` does not name.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

# Seconds for a script; the largest has some hundred conversations.
TIME_MAX = 300

# Of TLS 1.2, rustls speaks no other key exchange, and only authenticated encryption.
ECDHE = ["-d", "-C", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]

# Arguments of each script after host and port. `-n` is the number of conversations, drawn from all.
SCRIPTS = {
    "test-tls13-conversation.py": [],
    "test-tls13-ccs.py": [],
    "test-tls13-connection-abort.py": [],
    "test-tls13-empty-alert.py": [],
    "test-tls13-finished.py": ["-n", "60"],
    "test-tls13-finished-plaintext.py": [],
    "test-tls13-hrr.py": [],
    "test-tls13-invalid-ciphers.py": [],
    "test-tls13-keyshare-omitted.py": [],
    "test-tls13-keyupdate.py": ["-n", "60"],
    "test-tls13-large-number-of-extensions.py": [],
    "test-tls13-legacy-version.py": [],
    "test-tls13-nociphers.py": [],
    "test-tls13-record-layer-limits.py": [],
    "test-tls13-record-padding.py": [],
    "test-tls13-unencrypted-alert.py": [],
    "test-tls13-unrecognised-groups.py": ["-n", "60"],
    "test-tls13-version-negotiation.py": ECDHE,
    "test-tls13-zero-content-type.py": [],
    "test-tls13-zero-length-data.py": [],
    "test-record-layer-fragmentation.py": ECDHE,
    "test-invalid-client-hello.py": [],
    "test-truncating-of-client-hello.py": [*ECDHE, "-n", "60"],
}


def run(directory, host, port, script):
    """Runs a script; returns how many conversations passed, and what each other one failed with."""
    command = [sys.executable, f"scripts/{script}", "-h", host, "-p", port, *SCRIPTS.get(script, [])]
    environment = os.environ | {"PYTHONPATH": str(directory)}
    try:
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIME_MAX)
    except subprocess.TimeoutExpired:
        return 0, {"(the whole script)": f"not done in {TIME_MAX} s"}
    passed = re.search(r"^PASS: (\d+)", ended.stdout, re.MULTILINE)
    if not passed:
        return 0, {"(the whole script)": (ended.stderr.strip().splitlines() or ["no result"])[-1]}
    failed, name = {}, ""
    # A conversation is its name with three dots, then OK, or a traceback that ends with the error.
    for line in (ended.stdout + ended.stderr).splitlines():
        if line.endswith(" ..."):
            name = line.removesuffix(" ...")
        error = re.match(r"(?:AssertionError|\w*Error|\w+Exception|tlslite\.\S+): ?(.*)", line)
        if error and name and name != "sanity":
            failed.setdefault(name, error[1] or line)
    count = re.search(r"^FAIL: (\d+)", ended.stdout, re.MULTILINE)
    if count and int(count[1]) > len(failed):
        for line in ended.stdout.splitlines():
            if line.startswith("\t'"):
                failed.setdefault(line.strip().strip("'"), "")
    return int(passed[1]), failed


def main():
    directory, host, port = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    lines = Path(__file__).with_name("expected.txt").read_text().splitlines()
    expected = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    unexpected = 0
    for script in sys.argv[4:] or SCRIPTS:
        passed, failed = run(directory, host, port, script)
        print(f"{script}: {passed} passed, {len(failed)} failed", flush=True)
        for name, error in failed.items():
            is_expected = any(of == script and part in name for of, part in expected)
            unexpected += not is_expected
            print(f"    {'expected' if is_expected else 'FAILED'}  {name}: {error}", flush=True)
    sys.exit(1 if unexpected else 0)


main()
