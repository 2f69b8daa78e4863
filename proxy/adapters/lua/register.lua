-- Give a proxy a new epoch: SharedLedger.register.
--
-- KEYS   1 pool, as account.lua
-- ARGV   1 now, 2 lease, 3 proxy
-- Returns  the epoch: it rises even across a loss of the store, being at least the store's clock in milliseconds.

local proxy = ARGV[3]
begin(proxy)
local epoch = next_number(redis.call('HGET', POOL, 'epoch'))
local text = string.format('%.0f', epoch)
redis.call('HSET', POOL, 'epoch', text, 'p|' .. proxy, text)
return epoch
