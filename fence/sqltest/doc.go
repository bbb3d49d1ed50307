// Package sqltest runs the SQL guards and the SQL fence device of natsfabric/fence against real databases: SQLite inside
// the test, and a PostgreSQL server that scripts/postgres starts. It is a module of its own, so that the drivers stay out
// of the graph of those who use the library.
//
//	scripts/postgres with go -C fence/sqltest test -race ./...
//
// Without the server the tests fail; they skip nothing.
package sqltest
