package gvisor_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// dockerPackages are Debian's Docker, with its plugins.
var dockerPackages = []string{
	"busybox-static", "ca-certificates", "curl", "docker-buildx", "docker-cli", "docker-compose", "docker.io", "iproute2", "iptables", "nftables",
	"procps", "python3", "sudo",
}

// dockerUser makes the user of the default image, in the group that may use dockerd.
const dockerUser = systemUser + ` && chroot "$1" usermod -aG docker vercel-sandbox`

// awaitDocker waits until dockerd answers.
const awaitDocker = `timeout 120 sh -c 'until docker info >/tmp/info 2>&1; do sleep 0.1; done' || { cat /tmp/info; tail -n 20 /var/log/dockerd.log; exit 1; }`

// dockerBuild makes the files of the images: a shell with the programs of busybox, and an image
// from which a file is deleted.
const dockerBuild = `mkdir -p ~/context && cd ~/context && cp /bin/busybox . && echo one > file && cat > Dockerfile <<'END'
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN mkdir -p /tmp /www /etc && echo hello > /www/index.html
COPY file /file
RUN echo two > /new && rm /file
CMD ["httpd", "-f", "-p", "80", "-h", "/www"]
END
`

// dockerChecks are the checks of docs/system-software.md, in order, as the sandbox's normal user.
var dockerChecks = []struct{ name, script string }{
	{"storage driver", `docker info --format '{{.Driver}}' | grep -x overlay2`},
	{"build", dockerBuild + `DOCKER_BUILDKIT=0 docker build -q -t box . 2>/dev/null | grep sha256`},
	{"build with BuildKit", dockerBuild + `DOCKER_BUILDKIT=1 docker build -q --network host -t kit . | grep sha256 && docker run --rm kit sh -c 'test ! -e /file && cat /new' | grep -x two`},
	{"deleted file", `docker run --rm box sh -c 'test ! -e /file && cat /new' | grep -x two`},
	{"run on none", `docker run --rm --network none box ip link | grep -c '^[0-9]' | grep -x 1`},
	{"run on host", `docker run --rm --network host box ip addr | grep -q 100.64.0.2`},
	{"run on bridge", `docker run --rm box ip addr | grep -q 172.17`},
	{"run privileged", `docker run --rm --privileged box sh -c 'mkdir /m && mount -t tmpfs m /m && grep -q " /m " /proc/mounts'`},
	{"run as a user", `docker run --rm --user 1000:1000 box id -u | grep -x 1000`},
	{"exit code", `docker run --rm box sh -c 'exit 7'; test $? = 7`},
	{"limits", `docker run --rm --memory 64m --cpus 0.5 --pids-limit 50 box echo ran | grep -x ran`},
	{"read-only", `docker run --rm --read-only box sh -c '! touch /x 2>/dev/null'`},
	{"volume", `docker volume create data >/dev/null && docker run --rm -v data:/data box sh -c 'echo kept > /data/f' && docker run --rm -v data:/data box cat /data/f | grep -x kept`},
	{"bind mount", `mkdir -p ~/share && echo mine > ~/share/f && docker run --rm -v ~/share:/share box sh -c 'cat /share/f; echo theirs > /share/g' | grep -x mine && grep -x theirs ~/share/g`},
	{"exec and logs", `docker run -d --name long box sh -c 'echo said; exec sleep 600' >/dev/null && docker exec long sh -c 'echo inside' | grep -x inside && docker logs long | grep -x said && docker top long | grep -q sleep && docker stats --no-stream long | grep -q long && docker rm -f long >/dev/null`},
	{"copy", `docker create --name copied box >/dev/null && echo copied > ~/f && docker cp ~/f copied:/f && docker cp copied:/f - | grep -a -q copied && docker rm copied >/dev/null`},
	{"commit", `docker run --name changed box sh -c 'rm /new; echo three > /three' && docker commit changed committed >/dev/null && docker run --rm committed sh -c 'test ! -e /new && cat /three' | grep -x three && docker rm changed >/dev/null`},
	{"save and load", `docker save box -o ~/box.tar && docker rmi -f committed box >/dev/null; docker load -i ~/box.tar | grep -q box && docker run --rm box sh -c 'test ! -e /file && cat /new' | grep -x two`},
	{"publish", `docker run -d --name web -p 8080:80 box >/dev/null && timeout 60 sh -c 'until curl -sf http://127.0.0.1:8080/ | grep -x hello; do sleep 0.1; done'`},
	{"user network with names", `docker network create net >/dev/null && docker run -d --name server --network net box >/dev/null && docker run --rm --network net box sh -c 'for i in $(seq 100); do wget -q -O - http://server/ && exit; sleep 0.1; done; exit 1' | grep -x hello`},
	{"networks are apart", `! docker run --rm box wget -q -T 2 -O - http://$(docker inspect -f '{{.NetworkSettings.Networks.net.IPAddress}}' server)/ 2>/dev/null && docker rm -f server >/dev/null && docker network rm net >/dev/null`},
	{"compose", `mkdir -p ~/compose && cd ~/compose && cat > compose.yaml <<'END'
services:
  web: {image: box, ports: ["8081:80"]}
  client:
    image: box
    command: [sh, -c, "for i in $(seq 100); do wget -q -O - http://web/ && exit; sleep 0.1; done; exit 1"]
    depends_on: [web]
END
docker compose up -d --quiet-pull >~/up 2>&1 || { cat ~/up; exit 1; }
timeout 60 sh -c 'until docker compose logs client | grep -q hello; do sleep 0.1; done' && curl -sf http://127.0.0.1:8081/ | grep -x hello && docker compose down >/dev/null 2>&1`},
	{"outbound", `docker run --rm box wget -q -T 60 -O - http://93.1.0.1/ | grep -x outside`},
	{"outbound privileged", `docker run --rm --privileged box wget -q -T 60 -O - http://93.1.0.1/ | grep -x outside`},
}

// TestSystem_Docker runs Debian's dockerd without any flag, and Docker as the sandbox's normal
// user: make system-test.
func TestSystem_Docker(t *testing.T) {
	lease := systemImage(t, dockerPackages, dockerUser)
	cfg := config(t)
	o := openOutside(t)
	f := &forkable{token: rand.Text()}
	f.runtime = o.Runtime
	f.spec = machine.Spec{
		ID: newID(), Hostname: "box", RootFS: lease.Path, VCPUs: 2, MemoryMB: 2048, DiskMB: 4096,
		Network: sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.1.0.1/32"}},
	}
	gc := guest.Config{Hostname: "box", TokenSHA256: guest.HashToken(f.token), User: "vercel-sandbox", WorkDir: "/vercel/sandbox"}
	cfg.Spec(&f.spec, &gc)
	var err error
	if f.spec.GuestConfig, err = json.Marshal(gc); err != nil {
		t.Fatal(err)
	}
	in, err := f.runtime.Start(t.Context(), f.spec)
	if err != nil {
		t.Fatal(err)
	}
	f.box = f.own(t, in)
	f.dockerd(t)
	for _, c := range dockerChecks {
		t.Run(c.name, func(t *testing.T) { f.user(t, c.script) })
	}
	t.Run("published through the sandbox's port", func(t *testing.T) { f.published(t) })
	t.Run("deny-all", func(t *testing.T) {
		if err := f.SetNetwork(sandbox.Network{Mode: sandbox.DenyAll}); err != nil {
			t.Fatal(err)
		}
		o.take()
		for _, flags := range []string{"", "--privileged", "--network host", "--privileged --network host"} {
			f.user(t, `! docker run --rm `+flags+` box wget -q -T 5 -O - http://93.1.0.1/ 2>/dev/null`)
		}
		if dialed := o.take(); len(dialed) > 0 {
			t.Errorf("dialed %q", dialed)
		}
	})
	t.Run("memory", func(t *testing.T) { // which is not saved before the networks are gone
		if found, err := f.Obstacles(t.Context()); err != nil || !slices.Contains(found, "the bridge docker0") {
			t.Errorf("obstacles to a save of the memory: %q, %v", found, err)
		}
		f.user(t, `docker ps -q | xargs -r docker stop -t 1 >/dev/null`)
		f.stopDocker(t)
		f.must(t, `ip link del docker0`)
		if found, err := f.Obstacles(t.Context()); err != nil || len(found) > 0 {
			t.Errorf("obstacles to a save of the memory: %q, %v", found, err)
		}
		restored := f.restore(t, f.checkpoint(t))
		restored.dockerd(t)
		restored.user(t, `docker start web >/dev/null && timeout 60 sh -c 'until curl -sf http://127.0.0.1:8080/ | grep -x hello; do sleep 0.1; done'`)
	})
	t.Run("stop and resume", func(t *testing.T) {
		again := f.startFrom(t, f.another(), f.saveDisk(t))
		again.dockerd(t)
		again.user(t, `docker run --rm -v data:/data box cat /data/f | grep -x kept && docker run --rm box sh -c 'test ! -e /file && cat /new' | grep -x two`)
		again.user(t, `docker start web >/dev/null && timeout 60 sh -c 'until curl -sf http://127.0.0.1:8080/ | grep -x hello; do sleep 0.1; done'`)
		again.published(t)
	})
}

// dockerd starts Docker's daemon and waits for it.
func (b box) dockerd(t *testing.T) {
	t.Helper()
	if _, err := b.Start(t.Context(), sandbox.CommandParams{Sudo: true, Argv: []string{"sh", "-c", "exec dockerd >/var/log/dockerd.log 2>&1"}}); err != nil {
		t.Fatal(err)
	}
	b.user(t, awaitDocker)
}

func (b box) stopDocker(t *testing.T) {
	t.Helper()
	b.must(t, `pkill dockerd; timeout 60 sh -c 'while pgrep dockerd >/dev/null; do sleep 0.1; done'`)
}

// user runs a script as the machine's normal user, which must succeed.
func (b box) user(t *testing.T, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o, err := b.Exec(ctx, sandbox.CommandParams{Argv: []string{"bash", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	defer o.Close()
	var out strings.Builder
	for {
		ev, err := o.Next()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		out.Write(ev.Data)
		if ev.Exit != nil {
			if ev.Exit.Code != 0 {
				t.Errorf("exit code %d: %s\n%s", ev.Exit.Code, out.String(), script)
			}
			return
		}
	}
}

// published gets a page from the machine's port 8080, as a preview does.
func (b box) published(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := b.Instance.Dial(ctx, 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://box/", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "hello\n" {
		t.Errorf("%q, %v", body, err)
	}
}
