# Speaks to the guest's netfilter as iptables-legacy and nft do, which the default image lacks.
import ctypes, os, socket, struct

libc = ctypes.CDLL(None, use_errno=True)
SO_SET_REPLACE = SO_GET_INFO = 64
SO_GET_ENTRIES = 65


def _get(s, option, buf):
    size = ctypes.c_uint32(len(buf))
    if libc.getsockopt(s.fileno(), 0, option, buf, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    return buf.raw


def legacy(table, add=None):
    """Replaces a table of iptables-legacy by itself, with a rule before the one that ends a hook's chain."""
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    name = table.encode().ljust(32, b"\0")
    info = _get(s, SO_GET_INFO, ctypes.create_string_buffer(name, 84))
    valid, *rest = struct.unpack_from("<I5I5III", info, 32)
    hooks, underflows, number, size = rest[:5], rest[5:10], rest[10], rest[11]
    head = 40  # struct ipt_get_entries, with padding
    entries = _get(s, SO_GET_ENTRIES, ctypes.create_string_buffer(name + struct.pack("<I", size), head + size))[head : head + size]
    if add:
        hook, rule = add
        at = hooks[hook]
        entries = entries[:at] + rule + entries[at:]
        hooks = [h + len(rule) if h > at else h for h in hooks]
        underflows = [u + len(rule) if u >= at else u for u in underflows]
        number, size = number + 1, size + len(rule)
    counters = ctypes.create_string_buffer(16 * number)
    replace = name + struct.pack("<III", valid, number, size) + struct.pack("<5I5I", *hooks, *underflows)
    replace += struct.pack("<I", number)
    replace += struct.pack("<Q", ctypes.addressof(counters)) + entries
    if libc.setsockopt(s.fileno(), 0, SO_SET_REPLACE, replace, len(replace)):
        raise OSError(ctypes.get_errno(), "setsockopt")


def redirect():
    """A rule that redirects TCP to 127.0.0.1 to port 9."""
    target = struct.pack("<H29sB", 56, b"REDIRECT", 0) + struct.pack("<IIII", 1, 2, 0, 0) + struct.pack(">HH", 9, 9) + bytes(4)
    loopback = bytes(4) + socket.inet_aton("127.0.0.1") + bytes(4) + b"\xff" * 4
    return loopback + bytes(64) + struct.pack("<HBB", 6, 0, 0) + struct.pack("<IHHI", 0, 112, 112 + len(target), 0) + bytes(16) + target


def _attr(kind, data):
    return struct.pack("<HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _text(kind, text):
    return _attr(kind, text.encode() + b"\0")


def _message(kind, flags, seq, attrs=b"", family=socket.AF_INET, resource=0):
    body = struct.pack(">BBH", family, 0, resource) + attrs
    return struct.pack("<IHHII", 16 + len(body), kind, flags, seq, 0) + body


class Nft:
    """A netlink socket to nftables."""

    def __init__(self):
        self.s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
        self.s.bind((0, 0))
        self.s.settimeout(60)

    def send(self, data):
        """Sends messages, and raises the first error in the answers to those that ask for one."""
        self.s.send(data)
        answers, asked, at = 0, 0, 0
        while at < len(data):
            size, kind, flags, _, _ = struct.unpack_from("<IHHII", data, at)
            asked += 1 if flags & 4 else 0
            at += -(-size // 4) * 4
        while answers < asked:
            got, at = self.s.recv(65536), 0
            while at < len(got):
                size, kind, _, _, _ = struct.unpack_from("<IHHII", got, at)
                if kind == 2:
                    (code,) = struct.unpack_from("<i", got, at + 16)
                    if code:
                        raise OSError(-code, "nftables")
                answers += 1
                at += -(-size // 4) * 4

    def generation(self):
        self.s.send(_message(10 << 8 | 16, 1, 1))
        return self.s.recv(65536)

    def nat(self, hook, priority):
        """Makes a chain for NAT with a rule that counts."""
        begin = _message(16, 1, 1, family=0, resource=10)
        table = _message(10 << 8 | 0, 0x405, 2, _text(1, "t"))
        where = _attr(0x8004, _attr(1, struct.pack(">I", hook)) + _attr(2, struct.pack(">i", priority)))
        name = "c%d" % hook
        chain = _message(10 << 8 | 3, 0x405, 3, _text(1, "t") + _text(3, name) + where + _text(7, "nat"))
        counter = _attr(0x8001, _text(1, "counter") + _attr(0x8002, _attr(1, bytes(8)) + _attr(2, bytes(8))))
        rule = _message(10 << 8 | 6, 0xC05, 4, _text(1, "t") + _text(2, name) + _attr(0x8004, counter))
        end = _message(17, 1, 5, family=0, resource=10)
        self.send(begin + table + chain + rule + end)


def answers(timeout=60):
    """A connection from the guest to itself."""
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname(), timeout):
        server.accept()
