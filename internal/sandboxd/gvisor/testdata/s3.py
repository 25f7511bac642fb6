"""An S3 server with one bucket in memory, as far as s3fs asks: python3 s3.py PORT"""
import hashlib
import sys
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

objects = {}  # key: content, headers
uploads = {}  # id: parts
META = ("content-type", "cache-control", "content-disposition", "content-encoding")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle_request(self):
        url = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        _, _, self.key = unquote(url.path).lstrip("/").partition("/")
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        getattr(self, "s3_" + self.command)()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def answer(self, status, body=b"", headers=None):
        if isinstance(body, str):
            body = body.encode()
        self.send_response(status)
        for k, v in (headers or {}).items():
            self.send_header(k, v)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self):
        self.answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    def meta(self):
        return {k: v for k, v in self.headers.items() if k.lower().startswith("x-amz-meta-") or k.lower() in META}

    def s3_HEAD(self):
        if not self.key:
            return self.answer(200)
        if self.key not in objects:
            return self.missing()
        content, meta, modified = objects[self.key]
        self.send_response(200)
        for k, v in {**meta, "ETag": tag(content), "Last-Modified": modified, "Content-Length": str(len(content))}.items():
            self.send_header(k, v)
        self.end_headers()

    def s3_GET(self):
        if not self.key:
            return self.listing()
        if self.key not in objects:
            return self.missing()
        content, meta, modified = objects[self.key]
        headers = {**meta, "ETag": tag(content), "Last-Modified": modified}
        if self.headers.get("range"):
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            part = content[int(first) : int(last or len(content)) + 1]
            return self.answer(206, part, {**headers, "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"})
        self.answer(200, content, headers)

    def listing(self):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        keys, common = [], set()
        for key in sorted(objects):
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                common.add(prefix + head + delimiter) if found else keys.append(key)
        entries = "".join(
            f"<Contents><Key>{escape(k)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(tag(objects[k][0]))}</ETag><Size>{len(objects[k][0])}</Size></Contents>"
            for k in keys
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(c)}</Prefix></CommonPrefixes>" for c in sorted(common))
        self.answer(
            200,
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>{entries}{prefixes}</ListBucketResult>",
            {"Content-Type": "application/xml"},
        )

    def s3_PUT(self):
        content, meta = self.body, self.meta()
        source = self.headers.get("x-amz-copy-source")
        if source:
            _, _, key = unquote(source).lstrip("/").partition("/")
            if key not in objects:
                return self.missing()
            content = objects[key][0]
            if "uploadId" in self.query and self.headers.get("x-amz-copy-source-range"):
                first, last = self.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
                content = content[int(first) : int(last) + 1]
            elif self.headers.get("x-amz-metadata-directive") != "REPLACE":
                meta = objects[key][1]
        if "uploadId" in self.query:
            uploads[self.query["uploadId"]][1][int(self.query["partNumber"])] = content
        else:
            objects[self.key] = (content, meta, formatdate(usegmt=True))
        result = f"<CopyResult><ETag>{escape(tag(content))}</ETag></CopyResult>" if source else ""
        self.answer(200, result, {"ETag": tag(content)})

    def s3_POST(self):
        if "uploads" in self.query:
            upload = str(len(uploads) + 1)
            uploads[upload] = (self.meta(), {})
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        meta, parts = uploads.pop(self.query["uploadId"])
        content = b"".join(parts[n] for n in sorted(parts))
        objects[self.key] = (content, meta, formatdate(usegmt=True))
        self.answer(200, f"<CompleteMultipartUploadResult><ETag>{escape(tag(content))}</ETag></CompleteMultipartUploadResult>")

    def s3_DELETE(self):
        objects.pop(self.key, None)
        self.answer(204)


def tag(content):
    return '"' + hashlib.md5(content).hexdigest() + '"'


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
