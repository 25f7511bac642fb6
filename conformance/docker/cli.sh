# docker's command line: each command must do what it does with Docker.
docker version --format '{{.Server.Version}}'
docker info --format '{{json .SecurityOptions}}'
test "$(docker run --rm debian echo hello)" = hello
test "$(echo in | docker run --rm -i debian cat)" = in
docker run --rm debian sh -c 'exit 3' && exit 1 || test $? = 3
docker run --name box -d -l k=v debian sleep 600
test "$(docker ps -q --filter label=k=v | wc -l)" = 1
test "$(docker exec -e A=1 box sh -c 'echo $A')" = 1
test "$(echo in | docker exec -i box cat)" = in
docker exec box sh -c 'exit 4' && exit 1 || test $? = 4
docker exec box no-such-program && exit 1 || test $? = 127
echo content >"$HOME/file"
docker cp "$HOME/file" box:/tmp/there
docker cp box:/tmp/there "$HOME/back"
test "$(cat "$HOME/back")" = content
test "$(docker inspect --format '{{.State.Status}}' box)" = running
docker top box
docker rename box other
docker stop -t 60 other
test "$(docker wait other)" = 143
docker start other
docker kill other
docker rm -f other
docker run --rm --privileged debian true && exit 1 || test $? = 125
docker run --rm -v /:/host debian true && exit 1 || test $? = 125
docker images
test -z "$(docker ps -aq)"
