# write PATH MIB: writes that many MiB of random bytes to a file, and syncs it.
# read PATH: reads it. Both print the checksum.
import os, sys, zlib

crc = 0
if sys.argv[1] == "write":
    with open(sys.argv[2], "wb", buffering=0) as f:
        for _ in range(int(sys.argv[3])):
            block = os.urandom(1 << 20)
            crc = zlib.crc32(block, crc)
            f.write(block)
        os.fsync(f.fileno())
else:
    with open(sys.argv[2], "rb", buffering=0) as f:
        while block := f.read(1 << 20):
            crc = zlib.crc32(block, crc)
print(crc)
