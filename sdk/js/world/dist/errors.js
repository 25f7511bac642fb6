// Errors that the SDK's runtime knows by their names.
/** WorldError is any error of a World; its name says which of the SDK's it is. */
export class WorldError extends Error {
    status;
    code;
    /** seconds */
    retryAfter;
    constructor(name, message, more = {}) {
        super(message);
        this.name = name;
        Object.assign(this, more);
    }
}
const byStatus = {
    409: 'EntityConflictError',
    410: 'RunExpiredError',
    412: 'PreconditionFailedError',
    425: 'TooEarlyError',
    429: 'ThrottleError',
};
/** errorOf is the error of an answer of the daemon. */
export function errorOf(what, status, body, retryAfter) {
    let message = Buffer.from(body).toString();
    let code;
    try {
        const said = JSON.parse(message);
        ({ message, code } = { code: said.code, message: said.message, ...said.error });
    }
    catch {
        // Something between here and the daemon has answered.
    }
    const seconds = Number(retryAfter);
    return new WorldError(byStatus[status] ?? 'WorkflowWorldError', message || `${what}: the daemon answers ${status}`, {
        status,
        code,
        ...(retryAfter && Number.isFinite(seconds) && { retryAfter: seconds }),
    });
}
export const isNotFound = (e) => e?.status === 404;
/** transportError says that no answer has come. */
export function transportError(what, cause) {
    const why = cause?.code ?? cause?.message ?? String(cause);
    return new WorldError('WorkflowWorldError', `${what}: no answer of the daemon: ${why}`, { code: 'TRANSPORT', cause });
}
