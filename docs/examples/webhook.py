"""A receiver of the sink `http`: it checks each request, and keeps each event once, in a file.

SECRETS="whsec_..." python webhook.py [PORT]
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

KEYS = [base64.b64decode(s.removeprefix("whsec_")) for s in os.environ["SECRETS"].split()]
FILE = Path("received.jsonl")
SEEN = {json.loads(line)["id"] for line in FILE.open()} if FILE.exists() else set()


class Webhook(BaseHTTPRequestHandler):
    def do_OPTIONS(self):
        self.answer(204)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_signed(body):
            self.answer(401)
            return
        with FILE.open("a") as file:
            for event in json.loads(body):
                if event["id"] not in SEEN:  # a request, or some of its events, may come again
                    file.write(json.dumps(event) + "\n")
                    SEEN.add(event["id"])
            file.flush()
            os.fsync(file.fileno())  # only then is it answered
        self.answer(204)

    def is_signed(self, body):
        name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        if abs(time.time() - int(at)) > 300:
            return False
        signed = f"{name}.{at}.".encode() + body
        given = self.headers["webhook-signature"].split()
        wanted = [hmac.digest(key, signed, hashlib.sha256) for key in KEYS]
        return any(
            hmac.compare_digest(one.removeprefix("v1,"), base64.b64encode(other).decode())
            for one in given
            for other in wanted
        )

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Webhook).serve_forever()
