import { withWorkflow } from 'workflow/next';

export default withWorkflow({
  turbopack: { root: '/' }, // the packages are behind a link, and Turbopack takes no file from outside
  experimental: { cpus: 2, serverMinification: false }, // stacks have the names of functions
});
