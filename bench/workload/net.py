# A client of the bench's servers. Prints one number.
#
#   net.py stream NAME HOST PORT SIZE    MB/s of a connection with a TLS hello
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


def hello(name):
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


def stream():
    with socket.create_connection((address, port)) as s:
        s.sendall(hello(f"stream-{count}.{name}"))
        buffer = memoryview(bytearray(1 << 20))
        got, begun = s.recv_into(buffer), time.perf_counter()
        total = got
        while got:
            got = s.recv_into(buffer)
            total += got
        took = time.perf_counter() - begun
    if total != count:
        sys.exit(f"got {total} bytes of {count}")
    return total / 1e6 / took


def connect():
    times = []
    for _ in range(count + 1):
        begun = time.perf_counter()
        with context.wrap_socket(socket.create_connection((address, port)), server_hostname=name) as s:
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
    turn = asyncio.Semaphore(100)
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


print(asyncio.run(flows()) if what == "flows" else {"stream": stream, "connect": connect}[what]())
