// The part of CBOR (RFC 8949) that the daemon speaks: no indefinite lengths, dates as tag 1.
const utf8 = new TextDecoder();
/** encode returns a value as CBOR. Fields that are undefined are left out. */
export function encode(value) {
    const w = new Writer();
    w.value(value);
    return w.bytes();
}
class Writer {
    buf = Buffer.allocUnsafe(512);
    at = 0;
    bytes() {
        return this.buf.subarray(0, this.at);
    }
    room(n) {
        if (this.at + n <= this.buf.length)
            return;
        const grown = Buffer.allocUnsafe(Math.max(this.buf.length * 2, this.at + n));
        this.buf.copy(grown, 0, 0, this.at);
        this.buf = grown;
    }
    head(major, n) {
        this.room(9);
        const top = major << 5;
        if (n < 24)
            this.buf[this.at++] = top | n;
        else if (n < 0x100) {
            this.buf[this.at++] = top | 24;
            this.buf[this.at++] = n;
        }
        else if (n < 0x10000) {
            this.buf[this.at++] = top | 25;
            this.at = this.buf.writeUInt16BE(n, this.at);
        }
        else if (n < 0x100000000) {
            this.buf[this.at++] = top | 26;
            this.at = this.buf.writeUInt32BE(n, this.at);
        }
        else {
            this.buf[this.at++] = top | 27;
            this.at = this.buf.writeBigUInt64BE(BigInt(n), this.at);
        }
    }
    float(n) {
        this.room(9);
        this.buf[this.at++] = 0xfb;
        this.at = this.buf.writeDoubleBE(n, this.at);
    }
    text(s) {
        const n = Buffer.byteLength(s);
        this.head(3, n);
        this.room(n);
        this.at += this.buf.write(s, this.at, n, 'utf8');
    }
    value(v) {
        switch (typeof v) {
            case 'string':
                return this.text(v);
            case 'number':
                if (!Number.isSafeInteger(v) || Object.is(v, -0))
                    return this.float(v);
                return v >= 0 ? this.head(0, v) : this.head(1, -1 - v);
            case 'boolean':
                this.room(1);
                this.buf[this.at++] = v ? 0xf5 : 0xf4;
                return;
            case 'undefined':
                this.room(1);
                this.buf[this.at++] = 0xf7;
                return;
            case 'object':
                return this.object(v);
            default:
                throw new TypeError(`a ${typeof v} cannot be sent to the daemon`);
        }
    }
    object(v) {
        if (v === null) {
            this.room(1);
            this.buf[this.at++] = 0xf6;
        }
        else if (v instanceof Uint8Array) {
            this.head(2, v.length);
            this.room(v.length);
            this.buf.set(v, this.at);
            this.at += v.length;
        }
        else if (v instanceof Date) {
            this.head(6, 1);
            this.float(v.getTime() / 1000);
        }
        else if (Array.isArray(v)) {
            this.head(4, v.length);
            for (const e of v)
                this.value(e);
        }
        else {
            const fields = Object.entries(v).filter(([, e]) => e !== undefined);
            this.head(5, fields.length);
            for (const [k, e] of fields) {
                this.text(k);
                this.value(e);
            }
        }
    }
}
/** decode returns the value that bytes are. Byte strings share their memory. */
export function decode(bytes) {
    const r = new Reader(bytes);
    const v = r.value(0);
    if (r.left() > 0)
        throw new Error(`${r.left()} bytes follow the value`);
    return v;
}
const maxDepth = 64;
class Reader {
    buf;
    at = 0;
    view;
    constructor(buf) {
        this.buf = buf;
        this.view = new DataView(buf.buffer, buf.byteOffset, buf.byteLength);
    }
    left() {
        return this.buf.length - this.at;
    }
    take(n) {
        const at = this.at;
        if (n > this.left())
            throw new Error('the value is cut short');
        this.at += n;
        return at;
    }
    count(info) {
        if (info < 24)
            return info;
        switch (info) {
            case 24:
                return this.view.getUint8(this.take(1));
            case 25:
                return this.view.getUint16(this.take(2));
            case 26:
                return this.view.getUint32(this.take(4));
            case 27:
                return Number(this.view.getBigUint64(this.take(8)));
        }
        throw new Error('a value of indefinite length is not understood');
    }
    text(n) {
        const from = this.take(n);
        if (n < 32) {
            let s = '';
            for (let i = from; i < from + n; i++) {
                const c = this.buf[i];
                if (c > 0x7f)
                    return utf8.decode(this.buf.subarray(from, from + n));
                s += String.fromCharCode(c);
            }
            return s;
        }
        return utf8.decode(this.buf.subarray(from, from + n));
    }
    value(depth) {
        if (depth > maxDepth)
            throw new Error(`the value is nested more than ${maxDepth} deep`);
        const first = this.buf[this.take(1)];
        const major = first >> 5;
        const info = first & 31;
        switch (major) {
            case 0:
                return this.count(info);
            case 1:
                return -1 - this.count(info);
            case 2: {
                const n = this.count(info);
                const from = this.take(n);
                return new Uint8Array(this.buf.buffer, this.buf.byteOffset + from, n);
            }
            case 3:
                return this.text(this.count(info));
            case 4: {
                const n = this.count(info);
                if (n > this.left())
                    throw new Error('the value is cut short');
                const list = new Array(n);
                for (let i = 0; i < n; i++)
                    list[i] = this.value(depth + 1);
                return list;
            }
            case 5:
                return this.map(this.count(info), depth);
            case 6:
                return this.tagged(this.count(info), depth);
        }
        return this.simple(info);
    }
    map(n, depth) {
        const o = {};
        for (let i = 0; i < n; i++) {
            const key = String(this.value(depth + 1));
            const value = this.value(depth + 1);
            if (key === '__proto__')
                Object.defineProperty(o, key, { value, enumerable: true, writable: true, configurable: true });
            else
                o[key] = value;
        }
        return o;
    }
    tagged(tag, depth) {
        const v = this.value(depth + 1);
        if (tag === 1 && typeof v === 'number')
            return new Date(Math.round(v * 1000));
        if (tag === 0 && typeof v === 'string')
            return new Date(v);
        return v;
    }
    simple(info) {
        switch (info) {
            case 20:
                return false;
            case 21:
                return true;
            case 22:
                return null;
            case 23:
                return undefined;
            case 25: {
                const h = this.view.getUint16(this.take(2));
                const sign = h & 0x8000 ? -1 : 1;
                const exponent = (h >> 10) & 31;
                const fraction = h & 0x3ff;
                if (exponent === 31)
                    return fraction ? NaN : sign * Infinity;
                return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
            }
            case 26:
                return this.view.getFloat32(this.take(4));
            case 27:
                return this.view.getFloat64(this.take(8));
        }
        throw new Error(`a simple value ${info} is not understood`);
    }
}
/** frame is what the daemon's protocol is made of: fields and a payload, each behind its length. */
export function frame(meta, body = new Uint8Array()) {
    const m = encode(meta);
    const out = Buffer.allocUnsafe(8 + m.length + body.length);
    out.writeUInt32BE(m.length, 0);
    out.set(m, 4);
    out.writeUInt32BE(body.length, 4 + m.length);
    out.set(body, 8 + m.length);
    return out;
}
/** Frames takes frames out of bytes that come in pieces. */
export class Frames {
    pieces = [];
    size = 0;
    need = 8; // no frame is shorter
    push(piece) {
        this.pieces.push(piece);
        this.size += piece.length;
        if (this.size < this.need)
            return [];
        let buf = this.pieces.length === 1 ? piece : Buffer.concat(this.pieces, this.size);
        const found = [];
        for (;;) {
            this.need = 8;
            if (buf.length < this.need)
                break;
            const meta = buf.readUInt32BE(0);
            this.need = 8 + meta;
            if (buf.length < this.need)
                break;
            this.need += buf.readUInt32BE(4 + meta);
            if (buf.length < this.need)
                break;
            found.push({ meta: decode(buf.subarray(4, 4 + meta)), body: buf.subarray(8 + meta, this.need) });
            buf = buf.subarray(this.need);
        }
        this.pieces = buf.length > 0 ? [buf] : [];
        this.size = buf.length;
        return found;
    }
    /** rest is how many bytes of a frame have come that is not complete. */
    get rest() {
        return this.size;
    }
}
