import { type Client } from './client.ts';
/** Deliveries keeps a connection to the daemon, and hands what comes over it to the app. */
export declare class Deliveries {
    private readonly client;
    private readonly deployment;
    private readonly instance;
    private readonly working;
    private readonly app;
    private readonly ended;
    private running?;
    constructor(client: () => Client, deployment: () => string);
    /**
     * secret is what the app's handler demands of deliveries. All processes of a deployment have the
     * same: a server that workers share hands a request to any of them.
     */
    secret(): string;
    /** start connects once a server of this process handles workflows. It returns at once. */
    start(): void;
    close(): Promise<void>;
    private run;
    /** connection takes deliveries until the connection ends. */
    private connection;
    private take;
    /** deliver has the app handle one message, and tells the daemon how that went. */
    private deliver;
    private handle;
    private settle;
    private extend;
}
