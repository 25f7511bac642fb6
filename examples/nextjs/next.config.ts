import type { NextConfig } from 'next';
import { withWorkflow } from 'workflow/next';

export default withWorkflow({ devIndicators: false } satisfies NextConfig);
