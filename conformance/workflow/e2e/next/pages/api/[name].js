// A route of the pages router that starts a workflow.
import { start } from 'workflow/api';
import { all } from '../../workflows/promises';
import { sleeping } from '../../workflows/sleeps';
import { addTen } from '../../workflows/sums';

const workflows = { addTen, all, sleeping };

export default async function handler(request, response) {
  const run = await start(workflows[request.query.name], JSON.parse(request.body)); // which has no type
  response.status(200).json({ runId: run.runId });
}
