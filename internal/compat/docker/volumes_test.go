package docker

import "testing"

// What a container writes into a volume is there for the next one.
func TestVolumes(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const long = "workerd-snapshot-08a617e6-1.x" // no name of a drive
	for _, name := range []string{"data", long} {
		a := b.do("POST", "/volumes/create", m{"Name": name, "Labels": m{"k": name}}).want(201)
		if got := a.at("Name") + a.at("Labels.k"); got != name+name {
			t.Errorf("it is %s", a.body)
		}
		b.do("POST", "/volumes/create", m{"Name": name}).want(201) // again
	}
	if a := b.do("GET", "/volumes?filters="+filter(m{"label": []string{"k=" + long}}), nil).want(200); a.at("Volumes.0.Name") != long || a.at("Volumes.1") != "" {
		t.Errorf("the label finds %s", a.body)
	}
	write := b.create("write", "echo kept >d/file", m{"HostConfig": m{"Binds": []string{"data:/workspace/d"}}})
	if got := b.do("GET", "/containers/write/json", nil).at("Mounts.0.Name"); got != "data" {
		t.Errorf("the container has %s", got)
	}
	second := m{"Image": "debian", "HostConfig": m{"Binds": []string{"data:/mnt"}}}
	b.do("POST", "/containers/create?name=second", second).want(409)
	b.start(write)
	if code := b.wait(write); code != "0" {
		t.Errorf("the first container exits with %s", code)
	}
	b.do("POST", "/containers/create?name=second", second).want(201)
	b.do("DELETE", "/containers/second?force=1", nil).want(204)
	b.do("DELETE", "/volumes/data", nil).want(409)
	b.do("DELETE", "/containers/write", nil).want(204)
	for name, script := range map[string]string{"removes-itself": "echo self >d/self", "is-removed": "echo forced >d/forced; echo done; sleep 600"} {
		id := b.create(name, script, m{"HostConfig": m{"AutoRemove": name == "removes-itself", "Binds": []string{"data:/workspace/d"}}})
		b.start(id)
		if name == "removes-itself" {
			b.do("POST", "/containers/"+name+"/wait?condition=removed", nil)
			continue
		}
		lines := b.upgrade("/containers/"+name+"/attach?stream=1&stdout=1&logs=1", "")
		if _, err := lines.r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		b.do("DELETE", "/containers/"+name+"?force=1", nil).want(204)
	}
	read := b.create("read", "cat d/file d/self d/forced", m{"HostConfig": m{"Mounts": []m{{"Type": "volume", "Source": "data", "Target": "/workspace/d", "ReadOnly": true}}}})
	b.start(read)
	b.wait(read)
	if got := frames(t, b.do("GET", "/containers/read/logs?stdout=1", nil).want(200).body)[1]; got != "kept\nself\nforced\n" {
		t.Errorf("the second container reads %q", got)
	}
	b.do("DELETE", "/containers/read", nil).want(204)
	made := b.create("made", "true", m{"HostConfig": m{"Binds": []string{"fresh.one:/mnt:rw"}}})
	b.do("DELETE", "/containers/"+made, nil).want(204)
	for _, name := range []string{"data", long, "fresh.one"} {
		b.do("GET", "/volumes/"+name, nil).want(200)
		b.do("DELETE", "/volumes/"+name, nil).want(204)
		b.do("GET", "/volumes/"+name, nil).want(404)
		b.do("DELETE", "/volumes/"+name, nil).want(404)
		b.do("DELETE", "/volumes/"+name+"?force=1", nil).want(204)
	}
	for _, host := range []m{
		{"Binds": []string{"/:/host"}}, {"Binds": []string{"data:/mnt:shared"}}, {"Binds": []string{"data:mnt"}}, {"Mounts": []m{{"Type": "bind", "Source": "/", "Target": "/mnt"}}},
		{"Mounts": []m{{"Type": "volume", "Target": "/mnt"}}}, {"Mounts": []m{{"Type": "tmpfs", "Target": "/mnt"}}},
	} {
		b.do("POST", "/containers/create", m{"Image": "debian", "HostConfig": host}).want(400)
	}
	b.do("POST", "/volumes/create", m{"Name": "x", "DriverOpts": m{"device": "/"}}).want(400)
	b.do("POST", "/volumes/create", m{"Name": "x", "Driver": "nfs"}).want(400)
}
