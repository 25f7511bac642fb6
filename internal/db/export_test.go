package db

import "time"

// KeepReserve takes the room of the reserve again now.
func (d *DB) KeepReserve() {
	d.reserve.mu.Lock()
	d.reserve.at = time.Time{}
	d.reserve.mu.Unlock()
	d.reserve.keep()
}

// Waiting returns how many callers wait for the writer's turn.
func (d *DB) Waiting() int {
	d.writer.mu.Lock()
	defer d.writer.mu.Unlock()
	return len(d.writer.queue)
}
