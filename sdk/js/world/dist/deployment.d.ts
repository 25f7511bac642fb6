/**
 * deploymentId is CAY_DEPLOYMENT, else VERCEL_DEPLOYMENT_ID, else an id of the build in the
 * working directory, else one of the directory.
 */
export declare function deploymentId(env?: NodeJS.ProcessEnv, dir?: string, argv?: string[]): string;
