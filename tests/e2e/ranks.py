"""A training of several processes."""

from __future__ import annotations

RANKS = """\
import json, os, pathlib, random, socket, sys, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
drawn = random.random()
pathlib.Path(f"/tmp/{rank}").write_text("")
if rank == 0:
    with socket.create_server(address) as server, server.accept()[0] as other:
        drawn = [drawn, json.loads(other.recv(100))]
    pathlib.Path("drawn.json").write_text(json.dumps(drawn))
    pathlib.Path("~/results.txt").expanduser().write_text("outside")
else:
    for attempt in range(1000):
        try:
            with socket.create_connection(address) as other:
                other.send(json.dumps(drawn).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    while not pathlib.Path("drawn.json").exists():
        time.sleep(0.02)
print("rank", rank, sorted(name for name in os.listdir("/tmp") if name.isdigit()), flush=True)
sys.exit(rank * int(sys.argv[1]))
"""
