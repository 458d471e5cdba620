"""Stands in for SGLang's process tree: listens, answers the three endpoints, has a grandchild.

    python stand_in_server.py PORT MODE

MODE: ``ready``; ``die`` (says something and exits 3); ``stubborn`` (ignores SIGTERM); ``silent``
(never listens).
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPLIES = {
    "/health_generate": {},
    "/server_info": {
        "version": "0.5.23",
        "api_key": "hush",
        "admin_api_key": "hush",
        "internal_states": [{"hf_token": "hush", "max_total_num_tokens": 7}],
    },
    "/model_info": {"model_path": "/m", "bos_token_id": 1},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        reply = json.dumps(REPLIES[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    port, mode = int(sys.argv[1]), sys.argv[2]
    if mode == "die":
        print("\n".join(f"line {i}" for i in range(100)))
        print("ValueError: no such model", flush=True)
        sys.exit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A worker that left the group and ignores everything it can, as the worst case.
    worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
    print(f"server {os.getpid()} worker {child.pid}", flush=True)
    if mode == "silent":
        time.sleep(600)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
