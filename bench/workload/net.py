# A client of the bench's servers. Prints one number. Where it reads a stream it
# reads much at a time, as a system call in a sandbox costs more than elsewhere.
#
#   net.py stream NAME HOST PORT SIZE    MB/s of a connection with a TLS hello
#   net.py http NAME HOST PORT SIZE      MB/s of a download
#   net.py https NAME HOST PORT SIZE     MB/s of a download in TLS
#   net.py proxied NAME HOST PORT SIZE   MB/s of a download through a proxy
#   net.py connect NAME HOST PORT COUNT  ms of a TLS connection until its first
#                                        byte of HTTP, the median
#   net.py flows NAME HOST PORT COUNT    opens so many connections when the rally
#                                        begins, uses each, and ends it
import asyncio, resource, socket, ssl, sys, time

what, name, host, port, count = sys.argv[1:]
port, count = int(port), int(count)
address = socket.gethostbyname(host)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE


def dial():
    s = socket.create_connection((address, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def hello(name):
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


def pieces(s):
    buffer = memoryview(bytearray(1 << 20))
    while got := s.recv_into(buffer):
        yield buffer[:got]


def decrypted(s, send):
    incoming, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, out, server_hostname=name)
    buffer = memoryview(bytearray(1 << 16))
    received, sent = pieces(s), False
    while True:
        try:
            if not sent:
                tls.do_handshake()
                sent = tls.write(send) > 0
                s.sendall(out.read())
            while got := tls.read(len(buffer), buffer):
                yield buffer[:got]
            return
        except ssl.SSLWantReadError:
            s.sendall(out.read())
            piece = next(received, None)
            if piece is None:
                return
            incoming.write(piece)


def measure(received, total, head=False):
    first = bytes(next(received))
    begun = time.perf_counter()
    while head and b"\r\n\r\n" not in first:
        first += next(received)
    if head and not first.startswith(b"HTTP/1.1 200"):
        sys.exit(f"got {first[:200]}")
    got = len(first) - (first.index(b"\r\n\r\n") + 4 if head else 0)
    for piece in received:
        got += len(piece)
    if got != total:
        sys.exit(f"got {got} bytes of {total}")
    return total / 1e6 / (time.perf_counter() - begun)


def stream():
    with dial() as s:
        s.sendall(hello(f"stream-{count}.{name}"))
        return measure(pieces(s), count)


def download():
    target = f"http://{name}/{count}" if what == "proxied" else f"/{count}"
    request = f"GET {target} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
    with dial() as s:
        if what == "https":
            return measure(decrypted(s, request), count, head=True)
        s.sendall(request)
        return measure(pieces(s), count, head=True)


def connect():
    times = []
    for _ in range(count + 1):
        begun = time.perf_counter()
        with context.wrap_socket(dial(), server_hostname=name) as s:
            s.sendall(f"GET /0 HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            answer = s.recv(4096)
            times.append(time.perf_counter() - begun)
        if not answer.startswith(b"HTTP/1.1 200"):
            sys.exit(f"got {answer[:200]}")
    return 1e3 * sorted(times[1:])[count // 2]


async def flows():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    first = hello(f"echo.{name}")

    async def use(turn):
        async with turn:
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(first + b"x")
            await reader.readexactly(1)
        return reader, writer

    async def again(reader, writer):
        writer.write(b"y")
        await reader.readexactly(1)

    reader, rally = await asyncio.open_connection(address, port)
    rally.write(hello(f"rally.{name}"))
    await reader.readexactly(1)
    begun = time.perf_counter()
    turn = asyncio.Semaphore(20)
    opened = await asyncio.gather(*(use(turn) for _ in range(count)))
    # All are open now, and all still work.
    await asyncio.gather(*(again(*o) for o in opened))
    rally.write(b"z")
    await rally.drain()
    took = time.perf_counter() - begun
    for _, writer in opened:
        writer.close()
    await reader.read()
    return took


programs = {"stream": stream, "http": download, "https": download, "proxied": download, "connect": connect, "flows": lambda: asyncio.run(flows())}
print(programs[what]())
