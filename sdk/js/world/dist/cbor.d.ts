/** encode returns a value as CBOR. Fields that are undefined are left out. */
export declare function encode(value: unknown): Uint8Array;
/** decode returns the value that bytes are. Byte strings share their memory. */
export declare function decode(bytes: Uint8Array): unknown;
/** frame is what the daemon's protocol is made of: fields and a payload, each behind its length. */
export declare function frame(meta: object, body?: Uint8Array): Uint8Array;
export interface Frame {
    meta: Record<string, any>;
    body: Uint8Array;
}
/** Frames takes frames out of bytes that come in pieces. */
export declare class Frames {
    private pieces;
    private size;
    private need;
    push(piece: Buffer): Frame[];
    /** rest is how many bytes of a frame have come that is not complete. */
    get rest(): number;
}
