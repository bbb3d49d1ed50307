package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

const accountType = "account"

// request deposits an amount; reply is what the account holds then.
type (
	request struct {
		Deposit int64 `json:"deposit"`
	}
	reply struct {
		Balance int64 `json:"balance"`
	}
)

// account is the Actor. What it holds stands in the database; what it has in memory is a copy that is right because nobody
// else may write: each owner raises the guard before it loads, and each write goes through the guard.
type account struct {
	db      *sql.DB
	guard   *sqlguard.Guard
	late    *lateWrite
	balance int64
	loaded  bool
}

// Activate runs before the first turn at every owner. Entering the guard makes this owner's token the highest that the
// database has seen, and from then on no earlier owner writes; so what is read in the same transaction is final.
func (a *account) Activate(ctx context.Context, self *objects.Self) error {
	a.loaded = false
	return a.load(ctx, self.ID())
}

func (a *account) load(ctx context.Context, id string) error {
	err := a.guard.Do(ctx, a.db, nil, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = ?", id).Scan(&a.balance)
		if errors.Is(err, sql.ErrNoRows) {
			a.balance = 0
			_, err = tx.ExecContext(ctx, "INSERT INTO account (id, balance) VALUES (?, 0)", id)
		}
		return err
	})
	a.loaded = err == nil
	return err
}

// Handle runs one request.
func (a *account) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	var r request
	if err := json.Unmarshal(req.Data(), &r); err != nil || r.Deposit <= 0 {
		return objects.Reply{}, outcome.Wrap("account", outcome.InvalidOperation, outcome.Accepted, "", "a request needs a deposit above 0", err)
	}
	if !a.loaded { // the result of the last write is not known
		if err := a.load(ctx, req.Self().ID()); err != nil {
			return objects.Reply{}, err
		}
	}
	next := a.balance + r.Deposit
	if err := a.write(ctx, req.Self().ID(), next); err != nil {
		a.loaded = false
		return objects.Reply{}, err
	}
	a.balance = next
	a.late.remember(ctx, func(ctx context.Context) error { return a.write(ctx, req.Self().ID(), -1) })
	data, err := json.Marshal(reply{next})
	return objects.Reply{Data: data}, err
}

// write stores a balance under the token of ctx, in one statement that also checks the token.
func (a *account) write(ctx context.Context, id string, balance int64) error {
	_, err := a.guard.Exec(ctx, a.db, "UPDATE account SET balance = ?1 WHERE id = ?2 AND "+sqlguard.Entered, balance, id)
	return err
}

// accounts is the type of the Actors whose balances are in db. An account that moves is made anew at the target and loads
// what it needs there.
func accounts(db *sql.DB, late *lateWrite) objects.Type {
	return objects.Type{
		Name: accountType, Class: kvlocation.ClassActor, Move: objects.MoveRecreate,
		New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
			guard, err := sqlguard.New(sqlguard.Config{Dialect: sqlguard.SQLite(), Resource: "account/" + self.ID()})
			if err != nil {
				return nil, err
			}
			return &account{db: db, guard: guard, late: late}, nil
		},
	}
}

// openDatabase makes the tables in a file.
func openDatabase(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	guards, err := sqlguard.Schema("")
	if err != nil {
		return nil, err
	}
	for _, s := range []string{guards, "CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)"} {
		if _, err := db.ExecContext(ctx, s); err != nil {
			db.Close()
			return nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return db, nil
}

// lateWrite stands for what an owner that was paused does when it wakes up: the write of its last turn, with the token that
// the turn had.
type lateWrite struct {
	token fence.Token
	write func(ctx context.Context) error
}

// remember keeps the write and the token of a turn, as a goroutine would that the turn has started and nobody has ended.
func (l *lateWrite) remember(ctx context.Context, write func(ctx context.Context) error) {
	if t, err := fence.FromContext(ctx); err == nil {
		l.token, l.write = t, write
	}
}

// wakeUp does the write, whatever has happened meanwhile.
func (l *lateWrite) wakeUp(ctx context.Context) error { return l.write(fence.WithToken(ctx, l.token)) }
