"""An object store that speaks S3's protocol, for tests. It makes the bucket that is named, prints its own address, and ends with its
standard input.

    python server.py BUCKET
"""

import http.client
import sys

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
connection = http.client.HTTPConnection(host, port)
# Which service is meant is read from the signature, which is not checked.
credential = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
connection.request("PUT", f"/{sys.argv[1]}", headers={"authorization": credential})
answer = connection.getresponse()
if answer.status != 200:
    sys.exit(f"the bucket cannot be made: {answer.status} {answer.reason}")
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
server.stop()
