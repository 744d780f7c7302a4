"""event_files.py FOLDER… — reads TensorBoard's event files as TensorBoard does, and compares with its own reader.

read(FOLDER) returns {tag: [(step, value)]}: numbers, or texts. Lengths and contents have masked CRC-32C checksums. The start
of a session at a step drops what was read of that step and later ones. TensorBoard's reader has to say the same of the
numbers, where the package tensorboard is installed.
"""

import pathlib
import struct
import sys


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    data = path.read_bytes()
    while data:
        size, head = struct.unpack_from("<QI", data)
        body, (tail,) = data[12:12 + size], struct.unpack_from("<I", data, 12 + size)
        assert crc32c(data[:8]) == head and crc32c(body) == tail, f"{path}: wrong checksum"
        yield body
        data = data[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """(number, value) of a message's fields: integers, bytes, raw floats."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            assert at + size <= len(data), "a field reaches beyond its message"
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def value_of(summary):
    found = dict(fields(summary))
    if 2 in found:
        return found[1].decode(), struct.unpack("<f", found[2])[0]
    tensor, plugin = dict(fields(found[8])), dict(fields(dict(fields(found[9]))[1]))
    assert tensor[1] == 7 and plugin[1] == b"text", "not a text"
    return found[1].decode(), tensor[8].decode()


def read(folder):
    got = {}
    for path in sorted(pathlib.Path(folder).glob("*tfevents*")):
        for number, body in enumerate(records(path)):
            event = dict(fields(body))
            step = event.get(2, 0)
            assert number or event[3] == b"brain.Event:2", f"{path}: the first event has no version"
            if 7 in event:
                got = {tag: [p for p in points if p[0] < step] for tag, points in got.items()}
            for field, value in fields(event.get(5, b"")):
                tag, value = value_of(value)
                got.setdefault(tag, []).append((step, value))
    compare(folder, {tag: points for tag, points in got.items() if points and not isinstance(points[0][1], str)})
    return got


def compare(folder, numbers):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return
    theirs = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    theirs.Reload()
    assert {tag: [(e.step, e.value) for e in theirs.Scalars(tag)] for tag in theirs.Tags()["scalars"]} == numbers, \
        "TensorBoard reads something else"


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    for name in sys.argv[1:]:
        for tag, points in read(name).items():
            print(tag, points)
