// All keys there are, by where they work. Whoever adds a key adds it here.
import { Dialog } from './dialog';

type Keys = [keys: string, what: string][];

const groups = (pages: Keys): { name: string; keys: Keys }[] => [
  { name: 'Everywhere', keys: [...pages, ['/', 'Filter or search'], ['Esc', 'Leave a field, close'], ['?', 'This']] },
  {
    name: 'Lists',
    keys: [
      ['j k', 'Down and up'],
      ['Enter', 'Open'],
      ['Shift click', 'Select from there to here'],
    ],
  },
  {
    name: 'Filters',
    keys: [
      ['name=value Enter', 'Runs with that attribute'],
      ['user:ada Enter', 'Calls of that user; so key: model: tag: …'],
    ],
  },
  {
    name: 'Timeline of a run',
    keys: [
      ['j k', 'Down and up'],
      ['Enter', 'Details; Esc closes them'],
      ['+ -', 'Zoom; also Ctrl and the wheel'],
      ['h l', 'Earlier and later; also drag'],
      ['0', 'Show all; also a double click'],
      ['f', 'Follow what happens'],
    ],
  },
  {
    name: 'Tabs and forms',
    keys: [
      ['← →', 'Another tab, from a tab'],
      ['Ctrl Enter', 'Send what is typed for a hook'],
    ],
  },
];

/** KeysDialog lists them; pages are the keys that go to pages. */
export function KeysDialog({ pages, onClose }: { pages: Keys; onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <div class="keys-groups">
        {groups(pages).map((g) => (
          <section key={g.name} aria-label={g.name}>
            <h3>{g.name}</h3>
            <dl class="keys">
              {g.keys.map(([k, what]) => (
                <div key={k + what}>
                  <dt>
                    {k.split(' ').map((x) => (
                      <kbd key={x}>{x}</kbd>
                    ))}
                  </dt>
                  <dd>{what}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <div class="buttons">
        <button onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
