// Runs that tests find in lists.
import * as sdk from 'workflow';

export async function listed(fails: boolean) {
  'use workflow';
  if (fails) throw new sdk.FatalError('as asked');
  return 'done';
}

// The 4.8 line has none.
const setAttributes = (attributes: Record<string, string | undefined>) => (sdk as any)['setAttributes'](attributes);

async function attributesOfStep() {
  'use step';
  await setAttributes({ step: 'has run', phase: 'two' });
}

/** Sets attributes, in the workflow and in a step, changes one and removes one. */
export async function attributes() {
  'use workflow';
  await setAttributes({ phase: 'one', removed: 'soon' });
  await attributesOfStep();
  await setAttributes({ removed: undefined, last: 'ü' });
}
