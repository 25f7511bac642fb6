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
docker pause box
test "$(docker inspect --format '{{.State.Status}}' box)" = paused
docker unpause box
test "$(docker exec box echo again)" = again
docker stats --no-stream --format '{{.Name}}' box | grep -qx box
docker rename box other
docker stop -t 60 other
test "$(docker wait other)" = 143
docker start other
docker kill other
docker rm -f other
docker run --rm --privileged debian true && exit 1 || test $? = 125
docker run --rm -v /:/host debian true && exit 1 || test $? = 125
docker images
docker images -q debian | grep -q .
docker image inspect debian --format '{{.Os}}'
docker tag debian again:1
docker rmi again:1
docker run --name lines debian sh -c 'echo one; echo two; echo three >&2'
test "$(docker logs --tail 1 lines 2>&1)" = three
test "$(docker logs lines 2>/dev/null | wc -l)" = 2
test "$(docker logs --since 1h lines 2>/dev/null | wc -l)" = 2
test -z "$(docker logs --until 1h lines 2>&1)"
docker logs -t lines 2>/dev/null | grep -q '^20[0-9-]*T[0-9:.]*Z one$'
test "$(docker start -a lines 2>/dev/null | wc -l)" = 2
docker create --name made -e A=1 -w /tmp --memory 512m --cpus 1 debian sh -c 'pwd; echo $A'
test "$(docker start -a made)" = "/tmp
1"
test "$(docker ps -aq --filter name=made --filter status=exited | wc -l)" = 1
docker restart -t 60 made
docker wait made
docker port made
docker rm lines made
docker run -d --name served -p 127.0.0.1:0:8000 debian sleep 600
docker port served 8000/tcp | grep -q '^127.0.0.1:'
mkdir "$HOME/context"
echo content >"$HOME/context/f"
printf 'FROM debian\nUSER root\nCOPY f /f\nRUN cat /f >/g\nCMD cat /g\n' >"$HOME/context/Dockerfile"
DOCKER_BUILDKIT=0 docker build -t built:1 "$HOME/context"
test "$(docker run --rm built:1)" = content
docker rmi built:1
docker volume create data
docker run --rm -u root -v data:/mnt debian sh -c 'echo kept >/mnt/file'
test "$(docker run --rm -v data:/mnt:ro debian cat /mnt/file)" = kept
docker run --name writer -u root -v data:/mnt debian sh -c 'echo more >>/mnt/file'
test "$(docker run --rm -v data:/mnt debian tail -n 1 /mnt/file)" = more
docker rm writer
docker volume rm data
docker network ls --format '{{.Name}}' | grep -qx bridge
docker rm -f served
test -z "$(docker ps -aq)"
docker run --name maker -u root debian sh -c 'echo here >/made'
docker commit maker made:1
docker rm maker
docker save -o "$HOME/saved.tar" made:1
docker rmi made:1
docker load -i "$HOME/saved.tar" | grep -q made:1
test "$(docker run --rm made:1 cat /made)" = here
docker save made:1 | tar -t | grep -qx manifest.json
docker tag made:1 "$REGISTRY/team/made:1"
docker push "$REGISTRY/team/made:1" | grep -q 'digest: sha256:'
docker rmi made:1 "$REGISTRY/team/made:1"
docker pull "$REGISTRY/team/made:1"
test "$(docker run --rm "$REGISTRY/team/made:1" cat /made)" = here
docker rmi "$REGISTRY/team/made:1"
docker push "$REGISTRY/team/nothing:1" && exit 1 || test $? = 1
