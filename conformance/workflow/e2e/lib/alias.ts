// A module outside of the workflows, which they import by an alias.
export const byAlias = () => 'by an alias';
