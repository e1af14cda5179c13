# A web server in Python: a thread for each connection; each request makes objects, sorts, matches and packs them, and raises exceptions. Prints `port N`.
import hashlib
import http.server
import json
import re
import zlib


def fail(depth):
    if depth == 0:
        raise KeyError("deep")
    return fail(depth - 1)


def part(seed):
    words = sorted((str(seed * n % 101) for n in range(60)), key=lambda word: (len(word), word))
    text = json.dumps({word: n for n, word in enumerate(words)})
    packed = zlib.compress(text.encode())
    found = len(re.findall(r'"(\d)(\d?)"', zlib.decompress(packed).decode()))
    try:
        fail(8)
    except KeyError:
        found += 1
    return hashlib.md5(packed).hexdigest()[:8] + str(found)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = " ".join(part(seed) for seed in (7, 13)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
