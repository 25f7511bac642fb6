// What the Go test that started this process tells about its daemon and the
// internet of the daemon's guests.
//
//   token, teamId, projectId   credentials of the default team
//   name                       of that team, and of its project
//   jwt                        a token in the shape of a JWT for the same
//   other, limited             the same three of another team, and of one that may create one sandbox in a minute
//   control                    the URL of what the guests' internet recorded
//   url                        of the daemon
export const world = JSON.parse(process.env.CAY_WORLD);

/** The requests that the web servers of the guests' internet have seen for a path. */
export async function requestsFor(path) {
  const answer = await fetch(`${world.control}/requests?path=${encodeURIComponent(path)}`);
  return answer.json();
}
