-- Take a proxy that leaves out of one replica, and with the last one out of the pool: SharedLedger.forget.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease, 3 channel, 4 replica, 5 proxy, 6 "1": the pool as well
-- Returns  1.

local proxy = ARGV[5]
if ARGV[6] == '1' then
  redis.call('HDEL', POOL, 'p|' .. proxy)
  local expected = tonumber(redis.call('HGET', POOL, 'expected') or 0)
  redis.call('HSET', POOL, 'expected', string.format('%.0f', math.max(1, expected - 1)))
end
local all = redis.call('HGETALL', HEADS)
for i = 1, #all, 2 do
  local h = head_of(all[i], all[i + 1])
  if h.proxy == proxy then drop_head(h.field) end
end
if redis.call('HGET', STATE, 'holder') == proxy then redis.call('HSET', STATE, 'holder', '') end
local a, entry = load_account(), entry_of(proxy)
if not a or not entry then return 1 end
a.total = total_less(a, own_of(a, proxy, entry))
settle(a)
if entry.upto >= 0 then a.rewritten = a.rewritten - 1 end
local numbers = numbers_of(entry)
for i = 1, #numbers do redis.call('HDEL', ROWS, grant_field(proxy, numbers[i])) end
redis.call('HDEL', ROWS, 'r|' .. proxy, 'm|' .. proxy)
save_total(a)
return 1
