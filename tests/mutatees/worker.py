"""A Python program that speaks the protocol of the target programs.

work N: N rounds of sorting, hashing, regular expressions, exceptions and arithmetic; answers `result HASH` and `powers N`
"""

import ctypes
import hashlib
import json
import re
import signal
import ssl  # brings libcrypto
import sys

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
assert ssl.OPENSSL_VERSION


def work(rounds):
    digest = hashlib.sha256()
    powers = 0
    for r in range(rounds):
        values = [(i * 7919 + r) % 10007 for i in range(2000)]
        values.sort(key=lambda v: -v)
        for v in values[:500]:
            digest.update(str(pow(v, 3, 10007)).encode())
            powers += 1
        text = json.dumps({"round": r, "values": values[:200]})
        digest.update(repr(re.findall(r"[13579]\d", text)).encode())
        for i in range(50):
            try:
                raise ValueError(i)
            except ValueError as error:
                digest.update(str(error.args[0]).encode())
        digest.update(json.dumps(json.loads(text), sort_keys=True).encode())
    return digest.hexdigest(), powers


print("ready", flush=True)
for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    if command == "work":
        result, count = work(int(argument))
        print("result", result)
        print("powers", count)
    else:
        print("unknown command", line.strip())
    print("done", flush=True)
