package db

import "time"

// KeepReserve takes the room of the reserve again now.
func (d *DB) KeepReserve() {
	d.reserve.mu.Lock()
	d.reserve.at = time.Time{}
	d.reserve.mu.Unlock()
	d.reserve.keep()
}
