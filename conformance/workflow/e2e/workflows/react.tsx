// A step that renders a component. Next.js refuses the renderer in modules of its app router.
import { createElement } from 'react';

async function render(names: string[]) {
  'use step';
  const { renderToStaticMarkup } = await import('react-dom/server');
  return renderToStaticMarkup(createElement('ul', null, names.map((name) => createElement('li', { key: name }, name))));
}

export async function page(names: string[]) {
  'use workflow';
  return render(names);
}
