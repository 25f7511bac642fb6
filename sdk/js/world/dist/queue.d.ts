import { type Client } from './client.ts';
export interface PublishOptions {
    deploymentId?: string;
    idempotencyKey?: string;
    delaySeconds?: number;
    headers?: Record<string, string>;
    specVersion?: number;
}
export type Handler = (payload: unknown, meta: {
    attempt: number;
    queueName: string;
    messageId: string;
}) => Promise<unknown>;
export declare const secretHeader = "x-cay-delivery";
export declare const messageHeader = "x-cay-message";
export declare const attemptHeader = "x-cay-attempt";
/** Queue publishes messages of one deployment and takes its deliveries. */
export declare class Queue {
    private readonly client;
    private readonly deployment;
    private readonly secret;
    private readonly connect;
    constructor(client: () => Client, deployment: () => string, secret: () => string, connect: () => void);
    publish(name: string, payload: Record<string, unknown>, o?: PublishOptions): Promise<{
        messageId: string;
    }>;
    publishMany(name: string, messages: {
        message: Record<string, unknown>;
        opts?: PublishOptions;
    }[]): Promise<object[]>;
    /** handler returns what the app's route is to call with each request. */
    handler(prefix: string, handle: Handler): (req: Request) => Promise<Response>;
    private known;
    latest(): Promise<string>;
}
