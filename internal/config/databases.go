package config

// Database is a database of a daemon.
type Database struct {
	// Name is that of the file in Data, without ".db".
	Name string
	// File is the path of a SQLite database; empty for a database on another server.
	File string
}

// Databases lists the databases of a daemon, for backups and for the size of each. A
// backup copies them in this order, so a database with ids that another database defines
// comes before that other database: cay.db is last.
func (c *Config) Databases() []Database {
	workflows := Database{Name: "workflows", File: c.WorkflowFile()}
	if c.WorkflowDatabase != "" {
		workflows.File = ""
	}
	return []Database{
		workflows,
		{Name: "gateway", File: c.GatewayFile()},
		{Name: "flows", File: c.FlowFile()},
		{Name: "cay", File: c.DatabaseFile()},
	}
}
