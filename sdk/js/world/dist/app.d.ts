/** flowPath is where every app of the SDK handles workflows; stepPath is of the 4.x line. */
export declare const flowPath = "/.well-known/workflow/v1/flow";
export declare const stepPath = "/.well-known/workflow/v1/step";
/** watch has servers be noticed from now on. */
export declare function watch(): void;
/** App posts to the app's server. */
export declare class App {
    private readonly agent;
    private url?;
    private asked;
    get found(): boolean;
    close(): void;
    /** lost has the server be looked for again. */
    lost(): void;
    /** again has servers be asked that had no such routes: they may have by now. */
    again(): void;
    /** find waits until a server of this process handles workflows, and returns its address. */
    find(signal: AbortSignal): Promise<string>;
    /** handles asks a server whether it is the app: its route answers health checks. */
    private handles;
    /** post posts, and returns the answer however long that takes. */
    post(url: string, headers: Record<string, string>, body: Uint8Array): Promise<{
        status: number;
        body: string;
    }>;
}
